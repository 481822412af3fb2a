"""Models as Hugging Face folders: config.json, safetensors, a tokenizer and its settings.

They become what a GGUF file says: metadata under its keys, and a header that describes where in
the safetensors files the tensors lie, so that there is one way into the core (`_core.Gguf.join`)
and one into the tokenizer and the template. Nothing is ever unpickled.

Reading order: form (is it a model), documents (files that nobody trusts), fields (typed values of
config.json), safetensors (what lies where), families (a family's names and its numbers), rope (its
rotary embedding), header (all of it as a GGUF header), sentencepiece_file, texts (tokenizer,
template, generation settings), packed_text (those in a packed file), reader (a whole folder).
"""
