"""The bus: publish, subscribe and request over RabbitMQ, or within one process."""
