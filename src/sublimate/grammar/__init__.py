"""What an answer may look like: schemas and tool calls as grammars, and their token masks.

schema (a JSON schema becomes one that can be enforced), references (what its `$ref` name), lark
(the text of grammars), vocabulary (the model's tokens, and which of them may begin a marker),
constraint (what one request is held to), compiler (requests to constraints, cached and bounded),
matcher (tokens in, masks out), bounds (what a schema leaves open ends all the same).
"""
