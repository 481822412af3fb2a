"""Cases that no check of the HTTP edge covers: tested elsewhere in the tree, or not offered.

defines: ELSEWHERE, NOT_OFFERED
"""

SIMULATOR = "tests/sim"
CORE = "tests/cpp"
TIDY = "tests/unit/test_tidy.py"
FILES = "tests/unit/test_files.py"
FUZZERS = "tests/fuzz"
FAULTS = "tests/processes/test_faults.py"

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
    # There is no assertion that could vanish.
    "R085": TIDY,
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
    # Pages that change hands while the pool is full: a wrong byte of one is a wrong token there.
    **dict.fromkeys(("R029", "R031"), SIMULATOR),
    # A step that hangs: tripped, its requests ended, then restarted.
    **dict.fromkeys(("R058", "R061"), FAULTS),
    # The engine and the edge are processes of their own, told of each other's end.
    "R062": "tests/processes/test_supervise.py",
}

FORMATS = "Images and other media are a 400 that names them."
TIERS = "Pages are in one memory: nothing is offloaded and nothing restored."

NOT_OFFERED: dict[str, str] = {
    "R023": FORMATS,
    "R032": TIERS,
    "R059": "Pages are audited in tests; no integrity walk runs while the server is idle.",
    "R068": TIERS,
    "R163": "Nothing is published yet; releases come with signed manifests and trusted publishing.",
}
