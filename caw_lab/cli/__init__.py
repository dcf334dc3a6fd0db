"""The commands of the study, which the `caw` program finds by the entry point "caw.commands"."""

from caw.cli.lazy_commands import CommandGroup, LazyCommand

# copies of the commands' first docstring paragraphs, because importing the commands is slow; a test compares them
COMMANDS = {
    "detection-weights": LazyCommand(
        "caw_lab.cli.detection_weights_command", "detection_weights",
        "Create a token-weight table for `caw detect --weights`, or a calibration for weights from a model.",
    ),
    "label": LazyCommand(
        "caw_lab.cli.label_command", "label",
        "Label the key segments of reference answers, for `caw train-evaluator`.",
    ),
    "train-evaluator": LazyCommand(
        "caw_lab.cli.train_evaluator_command", "train_evaluator_command",
        "Train an evaluator for a model, from labelled answers or from the model's own texts.",
    ),
    "tune": LazyCommand(
        "caw_lab.cli.tune_command", "tune_command",
        "Choose theta and beta of the capacity policy on your own prompts.",
    ),
}  # fmt: skip
EVALUATIONS = {
    "run": LazyCommand(
        "caw_lab.cli.evaluate_run_command", "evaluate_run_command",
        "Generate answers with and without watermarks, grade them, and run detection on them.",
    ),
    "attack": LazyCommand(
        "caw_lab.cli.evaluate_attack_command", "evaluate_attack_command",
        "Attack the texts of a run and run detection again.",
    ),
    "perplexity": LazyCommand(
        "caw_lab.cli.evaluate_perplexity_command", "evaluate_perplexity_command",
        "Compute the perplexity of a run's texts under a second model, for the report.",
    ),
    "report": LazyCommand(
        "caw_lab.cli.evaluate_report_command", "evaluate_report_command", "Write the tables and figures of a run."
    ),
    "evaluator": LazyCommand(
        "caw_lab.cli.evaluate_evaluator_command", "evaluate_evaluator_command",
        "Measure how well evaluators identify key tokens on held-out documents.",
    ),
}  # fmt: skip
GROUPS = {"": CommandGroup("", COMMANDS), "evaluate": CommandGroup("Measure watermarks and evaluators.", EVALUATIONS)}
