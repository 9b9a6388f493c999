"""Messages to token ids and back: chat templates, incremental encoding, tool parsers, the record of a chain."""
