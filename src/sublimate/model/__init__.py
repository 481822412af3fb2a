"""Models as files and text: registry (names), files (fetch, verify, keep), source (a file or a
folder), tokenizer, template."""
