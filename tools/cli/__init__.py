"""Parts shared by all commands: options, output and errors."""
