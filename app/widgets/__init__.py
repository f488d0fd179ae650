"""Widgets of the chat, one a file."""
