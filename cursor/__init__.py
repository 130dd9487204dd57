"""Acknowledgment state of subscriptions: what a cursor has acknowledged, and how it is written down."""
