"""Alternatives to bookstand, each implemented in the fastest way that was found.

A store class opens in an empty directory and has `append_batches(payloads, batches)`, which commits the list `payloads`
durably `batches` times under ascending keys, `count()`, and `close()`.
"""
