"""Everything that two processes must agree on: identifiers, documents, messages, names of exchanges and errors."""
