"""Received messages, their ids, and sets of them."""
