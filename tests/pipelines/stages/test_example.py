"""The example: a small Llama on stages of devices."""

import pytest

import pipeline


@pytest.mark.large
@pytest.mark.parametrize(
    "arguments",
    [
        ["--microbatches", "3", "--interleave", "2"],
        ["--stages", "3", "--tensor-parallel", "1", "--schedule", "1f1b", "--layers", "3"],
    ],
)
def test_the_example_is_right(capsys, arguments):
    assert pipeline.main(arguments) == 0
    assert "Relative RMSE" in capsys.readouterr().out


def test_the_example_says_what_it_takes(capsys):
    with pytest.raises(SystemExit):
        pipeline.main(["--help"])
    assert "--microbatches" in capsys.readouterr().out
