"""Cases that no check of the HTTP edge covers: tested elsewhere in the tree, or not offered.

defines: ELSEWHERE, NOT_OFFERED
"""

SIMULATOR = "tests/sim"
CORE = "tests/cpp"
TIDY = "tests/unit/test_tidy.py"
FILES = "tests/unit/test_files.py"
FUZZERS = "tests/fuzz"
CONTINUOUS = ".ci/run"

ELSEWHERE: dict[str, str] = {
    # Scheduling, pages and cancellation: the real loop on a virtual clock, every seed audited.
    **dict.fromkeys(("R018", "R019", "R020", "R022", "R025", "R026", "R028"), SIMULATOR),
    **dict.fromkeys(("R034", "R042", "R046", "R049", "R050", "R052", "R069"), SIMULATOR),
    # The same bits whatever shares the batch; padding rows; a bad row fails alone.
    **dict.fromkeys(("R037", "R039", "R040"), CORE),
    # Output bytes to text: no whole prompt again, no code point torn.
    "R102": "tests/unit/test_text.py",
    # Rules about our own source.
    **dict.fromkeys(("R053", "R083", "R107", "R118"), TIDY),
    "R085": CONTINUOUS,
    # No allocation after start, heap flat.
    "R063": CORE,
    # Hostile model files.
    **dict.fromkeys(("R070", "R072", "R073", "R075", "R076", "R078", "R079"), FUZZERS),
    **dict.fromkeys(("R081", "R082"), FUZZERS),
    "R086": FILES,
    # Log-probabilities of a prompt are refused; those of tokens have their place in every row.
    "R004": "tests/api/test_openai.py",
    # One prompt and one cache behind all surfaces.
    "A12": "tests/api/test_surfaces.py",
    # The launcher's check and doctor's warning.
    **dict.fromkeys(("A35", "A92"), "tests/api/test_launch.py"),
    # Programs in the kernel observe and steer, each client by a key of its own.
    "R165": "tests/kernel/test_skeletons.py",
    "R167": "tests/kernel/test_steering.py",
    # The engine and the edge are processes of their own, told of each other's end.
    **dict.fromkeys(("R058", "R062"), "tests/processes"),
}

GPU = "There is no GPU path yet; the case is about device kernels."
HTTP2 = "HTTP/2 and gRPC are not offered yet: this port speaks HTTP/1.1."
QUIC = "QUIC is not offered yet: this port speaks HTTP/1.1."
FORMATS = "Images and other media are a 400 that names them."
TIERS = "Pages are in one memory: nothing is offloaded and nothing restored."
NO_GRAMMAR = "Grammars and schemas are not offered yet, so none is compiled or cached."

NOT_OFFERED: dict[str, str] = {
    "R023": FORMATS,
    **dict.fromkeys(("R029", "R031"), GPU),
    "R032": TIERS,
    "R059": "Pages are audited in tests; no integrity walk runs while the server is idle.",
    "R061": GPU,
    "R066": NO_GRAMMAR,
    "R068": TIERS,
    **dict.fromkeys(("R130", "R131", "R133", "R134"), HTTP2),
    **dict.fromkeys(("R137", "R139", "R140"), QUIC),
    "R163": "Nothing is published yet; releases come with signed manifests and trusted publishing.",
}
