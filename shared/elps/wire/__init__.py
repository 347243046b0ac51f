"""The data plane: frames over TCP between trainers and shards, with blocking sockets in threads of their own."""
