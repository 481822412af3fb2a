"""Writes the policy of proto/sublimate/v1/layer.proto as constants for C++: policy_values.h.

usage: python core/policy/generate.py FOLDER

CMake runs it when it configures. It needs the protobuf runtime alone: it reads the descriptor that
`make proto` made, and says so if that is older than the file.

defines: compiled_policy, stated_values, held_values, header, main
"""

import hashlib
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto/sublimate/v1/layer.proto"
MODULE = ROOT / "src/sublimate/v1/layer_pb2.py"
PARTS_PER_MILLION = 1_000_000


def compiled_policy():
    """The LayerPolicy in the options of service Layer."""
    spec = importlib.util.spec_from_file_location("layer_pb2", MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    service = module.DESCRIPTOR.services_by_name["Layer"]
    return service.GetOptions().Extensions[module.policy]


def stated_values(text):
    """(name, value) of each number and word in the option's block, in the order of the text."""
    block = re.search(r"option \(policy\) = \{\n(.*?)\n  \};", text, re.S).group(1)
    return re.findall(r"(\w+):\s*([\w.-]+)", re.sub(r"//[^\n]*", "", block))


def held_values(message):
    """The same of a message; what is 0 is not on the wire."""
    values = []
    for field, value in message.ListFields():
        for one in value if field.is_repeated else [value]:
            if field.message_type:
                values += held_values(one)
            elif field.enum_type:
                values.append((field.name, field.enum_type.values_by_number[one].name))
            else:
                values.append((field.name, repr(float(one))))
    return values


def initialiser(message, indent):
    """Lines of a C++ initialiser, one designator for each field of the message."""
    lines = []
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name == "profile":
            continue  # the place in the array
        if field.is_repeated:
            lines.append(f"{indent}.{field.name} = {{")
            for one in value:
                lines += [f"{indent}    {{", *initialiser(one, indent + "        "), f"{indent}    }},"]
            lines.append(f"{indent}}},")
        elif field.enum_type:
            name = field.enum_type.values_by_number[value].name.lower()
            lines.append(f"{indent}.{field.name} = {field.enum_type.name}::{name},")
        elif isinstance(value, float):
            parts = round(value * PARTS_PER_MILLION)
            if abs(parts / PARTS_PER_MILLION - value) > 1e-12:
                sys.exit(f"{field.name}: {value} is no whole number of millionths")
            lines.append(f"{indent}.{field.name}_ppm = {parts},")
        else:
            lines.append(f"{indent}.{field.name} = {value},")
    return lines


def header(policy):
    """The text of policy_values.h."""
    digest = hashlib.sha256(policy.SerializeToString(deterministic=True)).hexdigest()
    return "\n".join(
        [
            "// Made by core/policy/generate.py of proto/sublimate/v1/layer.proto.",
            "// Included by core/policy/policy.h alone.",
            f'constexpr char LAYER_POLICY_DIGEST[] =\n    "{digest}";',
            "constexpr LayerPolicy LAYER_POLICY = {",
            *initialiser(policy, "    "),
            "};",
            "",
        ]
    )


def main(folder):
    policy = compiled_policy()
    stated = [
        (name, value if value.isupper() else repr(float(value)))
        for name, value in stated_values(PROTO.read_text(encoding="utf-8"))
    ]
    if [pair for pair in stated if pair[1] != "0.0"] != held_values(policy):
        sys.exit(f"{MODULE.name} is not made of this {PROTO.name}: run `make proto`")
    if [one.profile for one in policy.profiles] != [1, 2, 3]:
        sys.exit(f"{PROTO.name}: each profile once, in the order of the enum")
    path = Path(folder) / "policy_values.h"
    text = header(policy)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
