"""What a user writes to have a model trained, the tasks that come with elps, and the layout of
parameters in one vector.
"""
