"""dart-chat: what a person sees. Speaks to the engine through `dart_core.events` and never imports torch."""
