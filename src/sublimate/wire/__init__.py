"""What a stream looks like on its way, read and written in Python: frames. The edge's own frames
are written in C++ (core/text/frames.h)."""
