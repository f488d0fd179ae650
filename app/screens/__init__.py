"""Screens of the chat, one a file."""
