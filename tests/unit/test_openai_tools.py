"""Tools of the OpenAI APIs (api/openai/tools.py): paths of errors, and names of choices."""

import pytest

from sublimate.api.openai.tools import ToolParam, read_tools
from sublimate.edge.errors import ApiError

READ = ToolParam("function", "read")
FILES = ToolParam("namespace", "files", tools=[READ])
MAIL = ToolParam("namespace", "mail", tools=[READ, ToolParam("function", "send")])


def placed(*params: ToolParam) -> list[tuple[str, ToolParam]]:
    return [(f"tools.{index}", param) for index, param in enumerate(params)]


def test_a_name_given_twice_is_named_where_it_stands() -> None:
    hosted = ToolParam("web_search")
    for params, path in (
        ((READ, hosted, READ), "tools.2"),
        ((hosted, FILES, FILES), "tools.2.tools.0"),
    ):
        with pytest.raises(ApiError) as caught:
            read_tools(placed(*params), 8)
        assert caught.value.path == path


def test_a_choice_by_a_name_that_two_namespaces_have_needs_the_namespace() -> None:
    names = read_tools(placed(FILES, MAIL), 8).names
    assert names == {
        "send": "mail.send",
        **{name: name for name in ("files.read", "mail.read", "mail.send")},
    }


def test_the_schema_of_a_custom_tool_is_its_format() -> None:
    custom = ToolParam("custom", "run", format={"syntax": "regex", "definition": "a+"})
    assert read_tools(placed(custom), 8).schema_paths == {"run": "tools.0.format.definition"}
