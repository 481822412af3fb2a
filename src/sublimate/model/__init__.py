"""Models as files and text: registry (names), files (fetch, verify, keep), tokenizer, template."""
