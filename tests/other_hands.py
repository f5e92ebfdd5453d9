"""What was found wrong when others tried the project, letter V of the issues: a line each, and what reproduces it now.

A reproduction is a test, which fails without the mend, or a notebook, which proves the mend in a cell.
"""

TESTS = "tests/test_{}.py::test_{}"


def test(module: str, name: str) -> str:
    return TESTS.format(module, name)


LINES: dict[str, str] = {  # what went wrong -> what reproduces it; empty where nothing does yet
    # 1 to 12
    "exploring called tools that change a server": "nbs/05_tasks/01_calls.ipynb",
    "a training run outlived its command, killed or hung up": test("train", "what_ends_the_command_ends_the_run"),
    "a training run outlived the reader of its output": test("train", "a_reader_that_leaves_ends_the_run"),
    "one odd schema or result lost an exploration": test("odd_servers", "an_odd_tool_costs_itself_at_most"),
    "work began whose result could not be written": test(
        "unwritable", "work_whose_result_cannot_be_written_does_not_begin"
    ),
    "an evaluation was lost with the disk": test("unwritable", "what_was_measured_is_said_and_its_episodes_are_kept"),
    "tasks were written over": test("odd_servers", "tasks_that_lie_in_the_folder_already_are_kept"),
    "control sequences reached the terminal": test("terminal", "control_sequences_are_written_out"),
    "an error carried control sequences": test("terminal", "an_error_names_a_file_without_its_control_sequences"),
    "a role became a script in a page": test("terminal", "nothing_in_a_page_is_markup"),
    "NaN was an answer": test("own_rows", "a_value_that_is_no_finite_number_is_refused"),
    "the working folder lent libraries": test("terminal", "the_working_folder_lends_no_library"),
    "broken endpoints: errors that say nothing": test(
        "broken_endpoints", "a_broken_endpoint_gives_one_sentence_in_time"
    ),
    "broken samplers: what they made up was taken": test(
        "broken_endpoints", "what_a_broken_sampler_returns_is_never_taken"
    ),
    "slow drips evaded every timeout": test("broken_endpoints", "a_drip_ends_with_its_request"),
    "a lone surrogate lost an evaluation": "nbs/00_core/05_endpoint.ipynb",
    "parallel calls at a full pipe ended one after another": test(
        "faults", "calls_that_wait_for_a_full_pipe_end_in_time"
    ),
    "a server's internal errors were always the model's": "nbs/01_client/03_session.ipynb",
    "an honest post with the company's name was refused": test(
        "statements", "honest_ways_succeed_and_dishonest_ways_do_not"
    ),
    # small
    "options that cannot be": "nbs/12_cli.ipynb",
    "mistakes and interruptions at the command line": test("mistakes", "a_mistake_is_answered_by_a_sentence"),
    "files of episodes that are not UTF-8, or without an outcome": test(
        "terminal", "a_broken_file_of_episodes_is_named_in_a_sentence"
    ),
    "a half-written last line": test("terminal", "the_half_written_last_line_of_a_killed_run_is_left_out"),
    "${input:key}, comments and a byte-order mark in a server file": "nbs/01_client/00_server_files.ipynb",
    "a manifest that leaves out the weights": "nbs/08_train/07_checkpoint.ipynb",
    "a list of tools too large for a message": test("faults", "a_list_of_tools_that_is_too_large_is_said_to_be"),
    "paths of the host in the sandbox's sys.orig_argv": "nbs/02_sandbox/02_box.ipynb",
    # known from earlier
    "structured results were not checked": test(
        "faults", "a_result_that_breaks_its_servers_promise_is_no_mistake_of_the_model"
    ),
    "a notice of ipykernel in a newcomer's first minute": test(
        "cli", "the_guides_commands_lead_from_a_server_to_a_policy"
    ),
    "weight folders left by killed processes": "nbs/07_rollout/08_remote.ipynb",
    "a warm start that is the whole run, in mode full, resumed": test(
        "modes",
        "workers_read_renamed_servers_and_a_warm_start_that_is_the_whole_run_is_resumed_after_a_kill",
    ),
    "workers that read tasks with data.server_names": test(
        "modes",
        "workers_read_renamed_servers_and_a_warm_start_that_is_the_whole_run_is_resumed_after_a_kill",
    ),
    "a base of 4 bits with rollout.dtype": test("modes", "a_base_of_4_bits_is_sampled_in_its_own_precision"),
    "the scaler for float16": "nbs/08_train/03_optim.ipynb",
    "the doctor's isolation unproved where exploring proves it": "nbs/10_run/02_doctor.ipynb",
    "an error's words rewritten by the renaming of tasks": "nbs/04_env/06_episode.ipynb",  # kept, with the reason
}
