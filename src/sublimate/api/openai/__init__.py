"""The OpenAI APIs: chat completions, completions, responses.

errors (their envelope), request (what their bodies share), scores (log-probabilities), then per
API one file for its body and one for its frames: chat and chat_frames, completions, responses and
response_frames (with response_store), joined in handlers.
"""
