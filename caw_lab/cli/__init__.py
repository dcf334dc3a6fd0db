"""The commands of the study, which the `caw` program finds by the entry point "caw.commands"."""

from caw.cli.program import CommandGroup, LazyCommand

COMMANDS = {
    "detection-weights": LazyCommand("caw_lab.cli.detection_weights_command", "detection_weights"),
    "label": LazyCommand("caw_lab.cli.label_command", "label"),
    "train-evaluator": LazyCommand("caw_lab.cli.train_evaluator_command", "train_evaluator_command"),
    "tune": LazyCommand("caw_lab.cli.tune_command", "tune_command"),
}
EVALUATIONS = {
    "run": LazyCommand("caw_lab.cli.evaluate_run_command", "evaluate_run_command"),
    "attack": LazyCommand("caw_lab.cli.evaluate_attack_command", "evaluate_attack_command"),
    "perplexity": LazyCommand("caw_lab.cli.evaluate_perplexity_command", "evaluate_perplexity_command"),
    "report": LazyCommand("caw_lab.cli.evaluate_report_command", "evaluate_report_command"),
    "evaluator": LazyCommand("caw_lab.cli.evaluate_evaluator_command", "evaluate_evaluator_command"),
}
GROUPS = {"": CommandGroup("", COMMANDS), "evaluate": CommandGroup("Measure watermarks and evaluators.", EVALUATIONS)}
