"""Each promise of docs/security.md is held by tests, which are named here."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "security.md"
R = "runtime/connection/test_"
P = "runtime/processes/test_"
C = "pipelines/test_build_cache.py::test_"
PARTS = (
    "Strangers on the network",
    "Someone between",
    "A compromised worker or host",
    "Files from elsewhere",
    "A client with the token",
    "Programs that were built before",
    "Tokens",
    "Copies that a launcher has started",
)
"""Beginnings of the parts whose rows, points and paragraphs are promises."""

NO_PROMISE = (
    *("they |", "launcher |", "---"),
    *("They reach the port", "They read and change"),
    *("A worker runs compiled programs", "Workers of one host run as the same user"),
    "The folder of `DISTIR_EXT_CACHE`",
)
"""Beginnings of what is a heading, or says who is hostile or what does not hold."""

# The beginning of a row, a point or a paragraph, and the tests of its sentences.
PROMISES: dict[str, tuple[str, ...]] = {
    "What does not hold: a flood": (
        f"{R}handshake.py::test_errors_of_accept_end_nobodys_session",
        f"{R}connections.py::test_hosts_listen_on_loopback_unless_told_otherwise",
    ),
    "Each process makes its own": (
        f"{R}certificates.py::test_strangers_with_a_certificate_get_as_far_as_the_proof",
        f"{R}tokens.py::test_private_keys_that_others_may_read_or_write",
        f"{R}tokens.py::test_private_key_of_somebody_else",
        f"{R}certificates.py::test_own_certificates_of_an_authority",
        f"{R}tls.py::test_keys_of_connections_are_not_made_of_the_known_key_alone",
    ),
    "Connections within a machine": (
        f"{R}encrypted_hosts.py::test_what_leaves_the_machine_is_encrypted",
        f"{R}handshake.py::test_a_relay_that_has_not_the_token_opens_no_session",
        f"{R}encrypted_hosts.py::test_both_sides_agree_on_encryption",
    ),
    "With `--insecure`": (f"{R}encrypted_hosts.py::test_insecure_warns",),
    "Connections that NCCL makes": (
        f"{R}encrypted_hosts.py::test_libraries_that_do_not_encrypt_warn_between_machines",
    ),
    "A compromised host has": (
        f"{R}tokens.py::test_workers_do_not_inherit_the_variable",
        f"{R}encrypted_hosts.py::test_a_connection_that_is_handed_on_needs_a_key",
    ),
    "Workers trust each other": (
        f"{R}hostile_peers.py::test_message_of_another_host",
        f"{R}encrypted_hosts.py::test_altered_data_between_workers_ends_the_step",
    ),
    "Weights, indices of": (
        "fuzz/test_parsers.py::test_parser",
        "hostile_names/test_files.py::test_yaml_says_where_and_in_time",
        f"{R}security_page.py::test_yaml_has_no_anchors",
        f"{R}security_page.py::test_files_are_read_up_to_their_limits",
        "params/test_damage.py::test_missing_files",
    ),
    "A *library*": (
        f"{P}libraries.py::test_damaged_library",
        f"{P}libraries.py::test_library_that_is_no_file",
    ),
    'With `workers="auto"`': (
        "launch/test_secrets.py::test_a_token_that_rank_0_has_made",
        "launch/test_meetings.py::test_a_token_that_is_wrong_is_an_error_at_once",
    ),
    "The token is as safe": (
        "launch/test_secrets.py::test_a_token_that_rank_0_has_made",
        "launch/test_secrets.py::test_a_token_that_is_stated",
    ),
    '"Yes" means TLS 1.3': (
        f"{R}encrypted_hosts.py::test_what_leaves_the_machine_is_encrypted",
        f"{R}encrypted_hosts.py::test_libraries_that_do_not_encrypt_warn_between_machines",
    ),
    "What a store says": (
        "launch/test_hostile_environments.py::test_what_a_stranger_writes_at_the_store",
        f"{R}security_page.py::test_files_are_read_up_to_their_limits",
        "launch/test_hostile_environments.py::test_paths_that_a_stranger_writes",
    ),
    "If others are on the network": (
        "launch/test_introductions.py::test_a_token_is_handed_on_between_hosts_only",
    ),
    "connect and guess": (f"{R}handshake.py::test_an_agent_lets_nobody_in_without_the_token",),
    "take a port or a name": (
        f"{R}handshake.py::test_an_unknown_listener_learns_nothing_of_the_token",
    ),
    "dial, to guess tokens": (f"{R}tokens.py::test_tokens_that_can_be_guessed",),
    "connect many times": (
        f"{R}handshake.py::test_one_deadline_for_all_of_a_handshake",
        f"{R}handshake.py::test_the_oldest_stranger_goes",
        f"{R}security_page.py::test_a_stranger_too_many_costs_no_thread",
    ),
    "use up descriptors": (f"{R}handshake.py::test_errors_of_accept_end_nobodys_session",),
    "listen": (f"{R}encrypted_hosts.py::test_what_is_between_sees_nothing",),
    "change, drop, repeat": (f"{R}encrypted_hosts.py::test_no_byte_can_be_altered_between",),
    "pass the proofs on": (f"{R}encrypted_hosts.py::test_who_ends_tls_between_opens_no_session",),
    "ask for no encryption": (
        f"{R}encrypted_hosts.py::test_both_sides_agree_on_encryption",
        f"{R}certificates.py::test_an_old_version_of_tls",
    ),
    "lead a connection": (f"{R}certificates.py::test_own_certificates_of_an_authority",),
    "It may compute wrong results": (
        f"{P}process_start.py::test_a_worker_that_never_answers_while_it_starts",
        "runtime/test_failures.py::test_a_timeout_is_reported_in_time",
    ),
    "It cannot make the controller": (
        f"{R}frames.py::test_what_is_no_frame_is_an_error",
        f"{R}frames.py::test_claimed_length_takes_no_memory",
        f"{R}frames.py::test_a_frame_takes_as_much_memory_as_it_has_bytes",
        f"{R}frames.py::test_many_small_buffers_take_little_more_than_the_words_that_claim_them",
        f"{R}frames.py::test_what_only_a_controller_says_is_not_read",
        f"{R}frames.py::test_memory_that_ends_is_an_error_of_the_frame",
        f"{R}frames.py::test_failures_are_cut",
        f"{R}frames.py::test_many_small_tensors_take_little_memory",
    ),
    "The agent of a worker's host": (
        f"{R}relay.py::test_worker_that_says_anything",
        f"{R}relay.py::test_agent_that_says_anything",
    ),
    "If there are many hosts": (f"{R}relay.py::test_host_below_that_says_anything",),
    "Each answer is checked": (
        f"{R}frames.py::test_what_is_no_answer_is_an_error",
        f"{R}frames.py::test_tensor_that_was_described_otherwise",
        f"{R}frames.py::test_result_of_another_kind_than_the_program_has",
    ),
    "Messages contain text": (
        "hostile_names/test_names.py::test_every_output_has_hostile_names_as_text",
        "hostile_names/test_names.py::test_every_public_function_has_names_as_text_in_its_errors",
        "hostile_names/test_names.py::test_what_is_printed_runs",
        "hostile_names/test_names.py::test_logs_and_bars",
        "runtime/test_hostile_failures.py::test_what_a_worker_says_is_text",
        "hostile_names/test_names.py::test_every_result_that_has_a_view",
        "hostile_names/test_files.py::test_arguments_that_name_nothing",
    ),
    "Functions of the native library": (
        "abi/test_calls_of_functions.py::test_wrong_arguments_are_type_errors",
    ),
    "Workers look for modules": (
        f"{P}process_start.py::test_modules_of_the_working_directory_do_not_run_in_workers",
    ),
    "*Between hosts.*": (
        f"{R}hostile_peers.py::test_message_of_another_host",
        f"{R}hostile_peers.py::test_peer_that_never_stops_to_send",
    ),
    "*Within a host.*": (
        f"{R}hostile_peers.py::test_size_of_shared_memory_is_sealed",
        f"{R}hostile_peers.py::test_shared_memory_that_somebody_overwrites",
    ),
    "*Between sessions.*": (
        "runtime/test_between_sessions.py::test_boxes_of_another_process",
        f"{R}security_page.py::test_files_in_memory_are_sealed_against_being_shortened",
        f"{R}security_page.py::test_who_may_read_a_process_is_not_changed",
    ),
    "Only regular files": (
        "params/test_hostile_files.py::test_what_is_no_file_is_not_read",
        "params/test_hostile_files.py::test_link_that_leaves_the_directory",
        "params/test_hostile_files.py::test_links_that_stay",
        "params/test_hostile_files.py::test_what_is_no_file_beside_an_index",
        "params/test_hostile_files.py::test_names_that_no_file_has",
    ),
    "Headers and indices": (
        "params/test_hostile_files.py::test_header",
        "params/test_hostile_files.py::test_names_of_tensors_that_cannot_be_printed",
        "params/test_hostile_files.py::test_dtype_that_is_not_one_of_numbers",
        "params/test_hostile_files.py::test_header_of_a_sparse_file_is_not_read",
    ),
    "The file of `--values`": (
        "cli/test_profile.py::test_files_of_values_that_are_none",
        "cli/test_profile.py::test_a_small_file_does_not_fill_the_memory",
    ),
    "A folder of `dx.save`": (
        "saved/test_hostile_programs.py::test_manifest",
        "saved/test_hostile_programs.py::test_module",
        "saved/test_hostile_programs.py::test_a_module_that_was_changed",
        "saved/test_hostile_programs.py::test_what_is_no_file_of_the_folder",
    ),
    "A saved state": ("saved/test_state.py::test_damage",),
    "An ONNX file": (
        "interop/onnx/test_external_files.py::test_what_lies_elsewhere_is_not_read",
        "interop/onnx/test_external_files.py::test_what_is_no_file_is_not_read",
    ),
    "A folder of a model": (
        "interop/torch/test_hostile_folders.py::test_folders_that_say_anything",
        "interop/torch/test_hostile_folders.py::test_tokens_are_printed_as_text",
    ),
    "Of all these nothing": (
        f"{R}security_page.py::test_nothing_is_unpickled_or_evaluated",
        "params/test_hostile_files.py::test_file_that_is_cut_off_while_it_is_read",
    ),
    "Plans in a compiled program": (
        "abi/test_hostile_plans.py::test_the_largest_plans",
        "abi/test_hostile_plans.py::test_text_that_is_nested_deep",
    ),
    "The folder is made for you": (f"{C}others_cannot_put_a_program_into_the_cache",),
    "Its files are for you": (f"{C}others_cannot_put_a_program_into_the_cache",),
    "A file that is cut off": (f"{C}damage_is_built_anew",),
    "A file is renamed": (f"{C}several_processes_at_once",),
    "On one machine all copies": (
        "launch/test_introductions.py::test_rank_0_listens_beyond_this_host_only_for_others",
    ),
    "On several machines": (
        "launch/test_introductions.py::test_rank_0_says_all_its_addresses",
        "launch/test_meetings.py::test_copies_listen_at_the_address_by_which_they_have_come",
    ),
    "Whoever has the token": (
        "launch/test_meetings.py::test_a_token_that_is_wrong_is_an_error_at_once",
    ),
    "When rank 0 exits": ("launch/test_meetings.py::test_copies_leave_with_the_status_of_rank_0",),
    "`distir launch`": ("launch/test_secrets.py::test_a_token_that_rank_0_has_made",),
    "torchrun and MPI on one": (
        "launch/test_secrets.py::test_a_token_that_rank_0_has_made",
        "launch/test_signals.py::test_a_start_that_waits_in_a_library_is_ended_at_once",
        "launch/test_introductions.py::test_who_writes_to_the_store_gives_no_token",
        "launch/test_hostile_environments.py::test_a_start_that_a_signal_ends_leaves_no_token",
    ),
    "torchrun on several": (
        "launch/test_introductions.py::test_a_token_is_handed_on_between_hosts_only",
    ),
    "MPI on several": (
        "launch/test_introductions.py::test_a_token_is_handed_on_between_hosts_only",
        f"{R}encrypted_hosts.py::test_libraries_that_do_not_encrypt_warn_between_machines",
    ),
    "Slurm": ("launch/test_secrets.py::test_a_token_that_is_stated",),
    "Kubernetes": ("launch/test_secrets.py::test_a_token_that_is_stated",),
    "Ray": (f"{P}ray_actors.py::test_a_token_is_in_no_process_or_log",),
    "What such a client sends": (
        f"{R}handshake.py::test_what_a_client_sends_is_an_error_for_that_client_alone",
        f"{R}handshake.py::test_what_is_no_frame_ends_that_client_alone",
    ),
    "`distir token FILE` writes": (
        f"{R}tokens.py::test_the_command_makes_one",
        f"{R}tokens.py::test_file_of_somebody_else",
        f"{R}tokens.py::test_tokens_that_can_be_guessed",
    ),
    "A token is read from": (
        f"{R}tokens.py::test_where_it_comes_from",
        f"{R}tokens.py::test_what_is_no_file_of_a_token",
    ),
    "`distir host` by hand": (f"{R}tokens.py::test_files_that_others_may_read_or_write",),
}


def promises() -> list[str]:
    """Rows of tables, points of lists and paragraphs of these parts of the page."""
    found = []
    for part in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE):
        if part.startswith(PARTS):
            found += re.findall(r"^(?:\| |- )(.+)$", part, re.MULTILINE)
            found += re.findall(r"\n\n((?![|-] )\S[^\n]*)", part)
    what_does_not = "What does not hold:"
    return [x for x in found if x != what_does_not and not x.startswith(NO_PROMISE)]


def test_every_promise_is_known():
    missing = [each for each in promises() if not each.startswith(tuple(PROMISES))]
    assert missing == []


def test_promises_are_on_the_page_and_their_tests_are_there():
    said = promises()
    for beginning, tests in PROMISES.items():
        assert any(each.startswith(beginning) for each in said), beginning
        for test in tests:
            file, _, name = test.partition("::")
            text = (ROOT / "tests" / file).read_text("utf-8")
            assert f"\ndef {name}(" in text, test
