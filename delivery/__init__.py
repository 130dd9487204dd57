"""Delivery of messages to subscriptions, with delays and redelivery."""
