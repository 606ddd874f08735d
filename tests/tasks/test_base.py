"""What the tasks of one experiment share."""

from luigi.cmdline_parser import CmdlineParser

from tasks.train import Train

WORDS = ["--module", "tasks.train", "Train", "--config", "configs/digits_mlp.toml"]


def test_set_given_twice_counts_twice():
    words = [*WORDS, "--set", "name=other", "--set", "train.steps=7"]
    with CmdlineParser.global_instance(words) as parser:
        task = parser.get_task_obj()
    assert isinstance(task, Train)
    assert (task.spec.name, task.spec.train.steps) == ("other", 7)
