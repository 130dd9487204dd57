"""Messages that wait for their time: delayed ones, and those that are to be delivered again."""
