"""Subscriptions, their consumers, and the states of their messages."""
