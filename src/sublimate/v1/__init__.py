"""What `make proto` made of proto/sublimate/v1: messages for the protobuf runtime. No file here but
this one is written by hand.
"""
