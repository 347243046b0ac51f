"""The command `elps`. One file per group of commands; whatever decides or formats is a pure function beside them."""
