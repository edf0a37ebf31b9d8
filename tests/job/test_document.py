"""Job files: what YAML and JSON say, and what they must not say."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.job import ElasticJob, JobError
from rallypoint.job.document import read_json, read_yaml, write_yaml

#: 478 bytes and less that stand for gigabytes.
ALIASES = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 26))
MERGES = "a0: &a0 {k0: x}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: x}}\n" for n in range(1, 14))
LONG = f"a: &a {'x' * 100_000}\nb: [*a, *a, *a, *a, *a, *a]\n"


@pytest.fixture
def job_file(tmp_path):
    """Write a job file and return its path."""

    def write(text, name="job.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("nodes", "least", "most"),
    [
        pytest.param("1:2", 1, 2, id="YAML 1.1 reads 62"),
        pytest.param("2:4", 2, 4, id="YAML 1.1 reads 124"),
        pytest.param("'1:2'", 1, 2, id="quoted"),
        pytest.param("1:60", 1, 60, id="beyond base sixty"),
        pytest.param("3", 3, 3, id="a number"),
        pytest.param("'3'", 3, 3, id="a number as text"),
    ],
)
def test_a_range_of_nodes_is_not_a_number_of_base_sixty(job_file, nodes, least, most):
    """`nodes: 1:2` is a range, as everyone who writes it means."""
    job = ElasticJob.from_file(job_file(f"name: digits\nentrypoint: train.py\nnodes: {nodes}\n"))

    assert (job.roles[0].nodes.min, job.roles[0].nodes.max) == (least, most)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        pytest.param("1.10", "1.10", id="a version"),
        pytest.param("0123", "0123", id="leading zero"),
        pytest.param("0x1f", "0x1f", id="hexadecimal"),
        pytest.param("1_000", "1_000", id="underscores"),
        pytest.param("1e-4", "1e-4", id="exponent"),
        pytest.param("1:30", "1:30", id="base sixty"),
        pytest.param("2026-01-02", "2026-01-02", id="date"),
        pytest.param("on", "on", id="on"),
        pytest.param("NO", "NO", id="no, also the country"),
        pytest.param(".inf", ".inf", id="infinity"),
        pytest.param("=", "=", id="the value key of YAML 1.1"),
        pytest.param("9" * 30, "9" * 30, id="more digits than a machine number has"),
        pytest.param("42", "42", id="a number"),
        pytest.param("-7", "-7", id="a negative number"),
        pytest.param("true", "true", id="true"),
        pytest.param("False", "false", id="false"),
        pytest.param("''", "", id="empty text"),
        pytest.param("'null'", "null", id="null in quotes"),
    ],
)
def test_environment_values_stay_as_they_are_written(job_file, written, value):
    """Only true, false and plain decimal integers are more than text, and these read back as themselves."""
    job = ElasticJob.from_file(job_file(f"name: digits\nentrypoint: train.py\nenv:\n  A: {written}\n"))

    assert job.roles[0].env == {"A": value}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("job.yaml", "name: digits\nentrypoint: train.py\nargs: [--lr, 0.10]\n", id="YAML"),
        pytest.param("job.yml", '{"name": "digits", "entrypoint": "train.py", "args": ["--lr", 0.10]}', id="JSON as YAML"),
        pytest.param("job.json", '{"name": "digits", "entrypoint": "train.py", "args": ["--lr", 0.10]}', id="JSON"),
        pytest.param("job", '{\t"name": "digits", "entrypoint": "train.py", "args": ["--lr", 0.10]}', id="JSON by content"),
        pytest.param("job", "{name: digits, entrypoint: train.py, args: [--lr, 0.10]}", id="flow YAML by content"),
        pytest.param(
            "job.yaml", "x: &a [--lr, 0.10]\n".replace("x: ", "args: ") + "name: digits\nentrypoint: train.py\n", id="an anchor"
        ),
    ],
)
def test_yaml_and_json_say_the_same(job_file, name, text):
    """The form is found by the file's ending, or else by its content; a number keeps its digits."""
    job = ElasticJob.from_file(job_file(text, name))

    assert (job.name, job.roles[0].entrypoint.words, job.roles[0].args) == ("digits", ("train.py",), ("--lr", "0.10"))


def test_merge_keys_work(job_file):
    """Roles may share what they have in common, and override it."""
    job = ElasticJob.from_file(
        job_file("name: digits\nroles:\n  a: &common {entrypoint: train.py, nodes: 2}\n  b: {<<: *common, nodes: 3}\n")
    )

    assert [(role.name, role.nodes.min) for role in job.roles] == [("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        pytest.param(
            "job.yaml",
            "name: digits\nnodes: 1\nentrypoint: train.py\nnodes: 2\n",
            "nodes: is set twice, on lines 2 and 4; remove all but one",
            id="at the top",
        ),
        pytest.param(
            "job.yaml",
            "name: digits\nentrypoint: train.py\nenv:\n  A: 1\n  A: 2\n",
            "env.A: is set twice, on lines 4 and 5; remove all but one",
            id="in a block",
        ),
        pytest.param(
            "job.yaml",
            "name: digits\nroles:\n- {entrypoint: a, entrypoint: b}\n",
            "roles[0].entrypoint: is set twice, on lines 3 and 3; remove all but one",
            id="on one line",
        ),
        pytest.param(
            "job.json",
            '{"name": "a", "env": {"A": 1, "A": 2}}',
            "A: is set twice in one object; remove all but one",
            id="in JSON",
        ),
        pytest.param(
            "job.yaml",
            "name: [digits\nnodes: 1\n",
            "line 2, column 6: is not valid YAML; expected ',' or ']', but got ':'",
            id="no YAML",
        ),
        pytest.param(
            "job.yaml", "name: *nobody\n", "line 1, column 7: is not valid YAML; found undefined alias 'nobody'", id="no anchor"
        ),
        pytest.param(
            "job.yaml",
            "name: a\n---\nname: b\n",
            "line 2, column 1: is not valid YAML; but found another document",
            id="two documents",
        ),
        pytest.param(
            "job.yaml",
            "name: \x01\n",
            "job: is not valid YAML; unacceptable character #x0001: special characters are not allowed",
            id="control",
        ),
        pytest.param(
            "job.yaml",
            "name: !!python/name:os.system x\n",
            "line 1, column 7: is not valid YAML; "
            "could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'",
            id="Python objects",
        ),
        pytest.param(
            "job.yaml",
            "nodes: !!int x\n",
            "job: is not valid YAML; invalid literal for int() with base 10: 'x'",
            id="a wrong tag",
        ),
        pytest.param(
            "job.yaml", 'a: !!timestamp "x"\n', "job: is not valid YAML; a value does not fit its tag", id="no timestamp"
        ),
        pytest.param("job.yaml", 'a: !!bool "x"\n', "job: is not valid YAML; a value does not fit its tag", id="no boolean"),
        pytest.param(
            "job.yaml",
            'a: !!int "' + "1:" * 200_000 + '1"\n',
            "line 1, column 4: is not valid YAML; expected an integer",
            id="a number of base 60",
        ),
        pytest.param(
            "job.yaml",
            'a: !!float "' + "1:" * 400 + '1"\n',
            "line 1, column 4: is not valid YAML; expected a number",
            id="a fraction of base 60",
        ),
        pytest.param(
            "job.json",
            '{"name": }',
            "line 1, column 10: is not valid JSON; Expecting value",
            id="no JSON",
        ),
        pytest.param("job.yaml", "[" * 5000, "job: the document is nested too deeply", id="too deep YAML"),
        pytest.param("job.json", "[" * 100_000, "job: the document is nested too deeply", id="too deep JSON"),
        pytest.param(
            "job.json", '{"name": ' + "9" * 5000 + "}", "job: is not valid JSON; an integer has too many digits", id="digits"
        ),
        pytest.param("job.yaml", "a: 1\n" * 2_000_000, "job: cannot be read; the document exceeds 524288 bytes", id="10 MB"),
        pytest.param(
            "job.yaml", "é" * 300_000, "job: cannot be read; the document exceeds 524288 bytes", id="cut in a character"
        ),
        pytest.param(
            "job.json", f"[{'1,' * 5_000_000}1]", "job: cannot be read; the document exceeds 524288 bytes", id="10 MB JSON"
        ),
        pytest.param(
            "job.yaml",
            f"[{'1,' * 30_000}1]",
            "job: with all YAML aliases expanded, the document has more than 20000 values",
            id="many values",
        ),
        pytest.param(
            "job.json",
            f"[{'1,' * 30_000}1]",
            "job: with all YAML aliases expanded, the document has more than 20000 values",
            id="many in JSON",
        ),
        pytest.param("job.json", "[" * 70 + "]" * 70, "job: the document is nested too deeply", id="deep JSON"),
        pytest.param("job.yaml", "[" * 70 + "]" * 70, "job: the document is nested too deeply", id="deep YAML"),
        pytest.param(
            "job.yaml", ALIASES, "job: with all YAML aliases expanded, the document has more than 20000 values", id="aliases"
        ),
        pytest.param(
            "job.yaml", MERGES, "job: with all YAML aliases expanded, the document has more than 20000 values", id="merges"
        ),
        pytest.param(
            "job.yaml",
            LONG,
            "job: cannot be read; with all YAML aliases expanded, the document exceeds 524288 bytes",
            id="long aliases",
        ),
        pytest.param("job.yaml", "a: &a [*a]", "job: cannot be read; a YAML alias refers to its own parent", id="a cycle"),
        pytest.param("job.json", '{"name": NaN}', "job: is not valid JSON; NaN is not a JSON value", id="not a number in JSON"),
        pytest.param("job.yaml", b"name: \xff\n", "job: cannot be read; the file is not valid UTF-8 text", id="not UTF-8"),
        pytest.param(
            "job.yaml",
            "just text",
            "job: 'just text' is not allowed; expected a mapping with name and entrypoint",
            id="text",
        ),
        pytest.param(
            "job.yaml",
            "",
            "job: null is not allowed; expected a mapping with name and entrypoint",
            id="an empty file",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_where(job_file, name, text, line):
    """The error names the file, then the key or the line."""
    path = job_file(text, name)
    with pytest.raises(JobError) as caught:
        ElasticJob.from_file(path)

    assert str(caught.value) == f"{path} is not a valid job:\n{line}"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("missing.yaml", "No such file or directory", id="missing"),
        pytest.param("", "Is a directory", id="a folder"),
        pytest.param("a\0b", "embedded null byte", id="no path"),
    ],
)
def test_a_file_that_cannot_be_opened_says_why(tmp_path, name, reason):
    """The system's own reason is passed on."""
    path = tmp_path / name
    with pytest.raises(JobError) as caught:
        ElasticJob.from_file(path)

    assert str(caught.value) == f"{path} is not a valid job:\njob: cannot be read; {reason}"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_what_is_written_as_yaml_reads_back_here_and_everywhere(document):
    """Our reader and a reader of YAML 1.1 both give back what was written."""
    text = write_yaml(document)

    assert read_yaml(text) == document
    assert yaml.safe_load(text) == document


@pytest.mark.parametrize("read", [pytest.param(read_yaml, id="YAML"), pytest.param(read_json, id="JSON")])
@given(text=st.text())
def test_any_text_is_a_document_or_a_job_error(read, text):
    """Neither reader raises anything else."""
    with contextlib.suppress(JobError):
        read(text)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        pytest.param("1e3", "'1e3'", id="a number to Go"),
        pytest.param("0o17", "'0o17'", id="an octal one"),
        pytest.param("1_000", "'1_000'", id="one with an underscore"),
        pytest.param("y", "'y'", id="a boolean to Go"),
        pytest.param("no", "'no'", id="a boolean to YAML 1.1"),
        pytest.param("500m", "500m", id="a quantity"),
        pytest.param("1.1.12", "1.1.12", id="a version of three numbers"),
        pytest.param("a\n  b\n", "|\n  a\n    b", id="lines"),
    ],
)
def test_what_is_written_is_text_to_every_reader(text, written):
    """Kubernetes reads YAML with a library of Go, which takes more for numbers and booleans than ours does."""
    assert write_yaml({"k": text}) == f"k: {written}\n"
