"""Every row of the catalogue of threats, what dpsql does about it in a few words, and the tests that hold it.

`make assurance` writes this table into docs/assurance.md; test_assurance.py checks that each named test exists.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threat:
    """A row: its id, the fault, and tests as "path under tests::function"; ``note`` says what is open."""

    id: str
    fault: str
    tests: tuple[str, ...]
    note: str = ""


THREATS = (
    Threat("F1", "float noise leaks low bits", (
        "privacy/test_noise_laws.py::test_a_million_draws_are_all_integers_of_the_law",
        "privacy/test_noise.py::test_every_draw_is_an_integer",
        "privacy/test_normals.py::test_rounding_agrees_with_the_scalar_code",
        "extensions/local/device/test_response.py::test_the_ratio_of_probabilities_is_at_most_e_to_the_epsilon",
    )),
    Threat("F2", "a float SUM has no sensitivity", (
        "measure/test_scan.py::test_sums_of_doubles_repeat_on_two_threads",
        "measure/test_scan.py::test_values_are_clamped_and_quantised",
    )),
    Threat("F3", "a norm in floats, or of the wrong corners", (
        "linalg/test_exact.py::test_column_norms_are_exact",
        "measure/test_sensitivity.py::test_no_neighbour_exceeds_the_claim",
        "workloads/test_unit_sensitivity.py::test_against_all_that_a_unit_can_do",
        "extensions/audit/test_audit_report.py::test_the_claim_is_attained_and_never_passed",
    )),
    Threat("F4", "rounding A breaks its row space", (
        "linalg/test_basis.py::test_coordinates_refuse_what_is_not_in_the_row_space",
        "linalg/test_modular.py::test_rank_sees_what_floats_do_not",
        "strategies/test_select.py::test_every_method_on_every_family",
    )),
    Threat("F5", "integer overflow in B x", (
        "measure/test_exact_products.py::test_products_are_exact_to_the_edge_of_the_bound",
        "measure/test_scan.py::test_sums_beyond_64_bits_are_exact",
        "strategies/test_strategy_refusals.py::test_a_record_that_could_overflow_int64_is_refused",
    )),
    Threat("F6", "NaN, infinity and NULL in a sum", (
        "measure/test_scan.py::test_values_are_clamped_and_quantised",
        "measure/test_sensitivity.py::test_every_small_table_against_every_neighbour",
    )),
    Threat("F7", "three-valued logic", (
        "measure/test_scan.py::test_a_row_is_in_one_cell",
        "extensions/audit/test_audit.py::test_the_scan_counts_every_row_once",
        "workloads/test_cells.py::test_labels_are_those_of_every_row",
    )),
    Threat("Q1", "errors that depend on data", (
        "sql/test_refusals.py::test_refused",
        "sql/test_fuzz_predicates.py::test_conditions_over_three_columns",
        "sql/test_expressions.py::test_random_expressions_are_duckdbs_and_never_fail",
        "extensions/audit/test_bad_inputs.py::test_bad_inputs_are_refused_before_any_sql",
        "measure/test_scan.py::test_what_fails_in_duckdb_on_a_row_is_answered_here",
        "sql/test_total.py::test_each_function_is_inside_its_range",
        "sql/test_total.py::test_each_function_is_inside_its_range_100_000_times",
        "sql/test_total.py::test_nested_expressions_fail_on_no_row",
        "sql/test_total.py::test_nested_expressions_fail_on_no_row_of_many",
        "sql/test_total.py::test_a_wrong_range_never_fails_and_never_leaves_what_the_plan_relies_on",
        "sql/test_value_proofs.py::test_proved_for_every_row",
        "sql/test_total.py::test_each_part_has_a_net_of_its_own",
        "sql/test_total.py::test_nobody_decides_an_outcome",
        "extensions/audit/test_generated_calls.py::test_thousands_of_calls",
    )),
    Threat("Q2", "exceptions that hold values", (
        "measure/test_scan.py::test_a_failed_scan_tells_nothing",
        "measure/test_scan.py::test_messages_are_the_same_for_neighbours",
        "driver/test_connection.py::test_a_failed_scan_says_nothing_of_the_data",
        "extensions/local/test_local_release.py::test_what_fails_after_the_charge_stays_charged_and_shows_nothing",
    )),
    Threat("Q3", "names and macros that shadow DuckDB's", (
        "engines/test_engine_duckdb.py::test_a_poisoned_file_gives_the_same_cells",
        "engines/test_engine_duckdb.py::test_macros_beside_an_open_connection_are_without_effect",
        "engines/test_engine_units.py::test_a_poisoned_file_gives_the_same_answers",
    )),
    Threat("Q4", "escapes from SELECT", (
        "sql/test_refusals.py::test_refused",
        "sql/test_refusals.py::test_files_are_not_read_while_names_are_made",
        "extensions/audit/test_bad_inputs.py::test_bad_inputs_are_refused_before_any_sql",
        "engines/test_engine_duckdb.py::test_python_variables_are_no_tables",
    )),
    Threat("Q5", "catalog and statistics", (
        "release/test_store.py::test_everything_but_one_select_is_refused",
        "sql/test_refusals.py::test_refused",
        "driver/test_connection.py::test_no_file_and_no_repr_holds_an_exact_value",
    )),
    Threat("Q6", "SQL that is not row-local", (
        "sql/test_refusals.py::test_refused",
        "sql/test_refusals.py::test_what_is_not_row_local_is_left_to_the_noisy_table",
        "extensions/audit/test_bad_inputs.py::test_bad_inputs_are_refused_before_any_sql",
    )),
    Threat("Q7", "joins and units of many rows", (
        "measure/test_units.py::test_no_unit_moves_more_than_claimed",
        "measure/test_units.py::test_nor_where_keys_dangle_and_units_are_null",
        "extensions/audit/test_audit_report.py::test_the_claim_is_attained_and_never_passed",
        "extensions/audit/test_bad_inputs.py::test_bad_inputs_are_refused_before_any_sql",
    )),
    Threat("Q8", "unknown group keys", (
        "sql/test_sums_and_keys.py::test_groups_that_are_not_public_are_refused",
        "driver/test_connection.py::test_neighbours_cannot_be_told_apart_but_by_noisy_numbers",
    )),
    Threat("Q9", "false parallel composition", (
        "measure/test_units.py::test_the_claim_is_attained",
        "workloads/test_unit_sensitivity.py::test_by_hand",
    )),
    Threat("Q10", "the time of a scan", (
        "extensions/audit/test_work_of_scans.py::test_scans_of_neighbours_take_the_same_steps",
        "measure/test_scan.py::test_the_scan_has_no_condition_on_rows",
        "measure/test_scan.py::test_nor_has_a_scan_of_rows_of_units",
    ), "the size of a table, how rows are spread over units, how many match in a join, and what the extremes of a "
       "column settle for all rows stay visible"),
    Threat("Q11", "the time of a draw", (
        "extensions/audit/test_audit.py::test_the_order_of_a_release",
        "test_imports.py::test_noise_is_drawn_once_and_before_the_scan",
    ), "a draw's time follows its size a little: measured in benchmarks/scan_time.py, not removed"),
    Threat("Q12", "semantics that drift", (
        "engines/test_engine_sources.py::test_a_time_without_a_zone_is_in_utc_everywhere",
        "engines/test_engine_duckdb.py::test_a_collation_of_the_connection_changes_nothing",
        "sql/test_golden.py::test_batch_is_answered_as_duckdb_answers_it",
    ), "golden batches are held against the DuckDB that is installed, one version a run"),
    Threat("L1", "an answer without a charge", (
        "assurance/test_kill_at_each_step.py::test_a_kill_on_either_side_of_every_write_leaves_a_whole_ledger",
        "extensions/audit/test_audit.py::test_the_order_of_a_release",
        "driver/test_connection.py::test_kill_9_never_refunds_and_never_loses_an_answer",
    )),
    Threat("L2", "a race for the last budget", (
        "assurance/test_races.py::test_exactly_the_grants_that_fit_among_two_to_eight",
        "privacy/test_ledger_processes.py::test_four_racing_processes_get_exactly_what_there_is",
    )),
    Threat("L3", "storage that forgets", (
        "assurance/test_disk_full.py::test_whole_releases_under_a_file_size_limit",
        "privacy/test_ledger_processes.py::test_what_was_acknowledged_before_a_kill_is_recorded",
        "privacy/test_ledger.py::test_wal_mode_is_refused",
    )),
    Threat("L4", "arithmetic of a budget", (
        "privacy/test_accountant.py::test_55_releases_at_one_55th_are_granted_and_no_more",
        "privacy/test_accountant.py::test_thousands_of_tiny_charges_add_up_exactly",
        "privacy/test_accountant.py::test_malformed_budgets_are_refused",
        "privacy/test_accountant.py::test_gaussian_noise_is_calibrated_to_exactly_what_is_charged",
        "privacy/test_accountant.py::test_a_charge_pays_for_the_noise_that_it_is_for",
    )),
    Threat("L5", "a ledger copied back or deleted", (
        "privacy/test_ledger.py::test_an_older_copy_is_refused_where_an_anchor_remembers",
        "privacy/test_ledger.py::test_a_ledger_that_was_held_to_an_anchor_needs_it_from_then_on",
        "privacy/test_ledger.py::test_a_deleted_ledger_is_not_replaced_where_an_anchor_remembers",
        "privacy/test_ledger_copies.py::test_an_older_backup_is_restored_with_all_that_the_anchor_counts",
        "privacy/test_ledger_copies.py::test_without_an_anchor_the_custodian_says_what_was_spent",
        "privacy/test_ledger_copies.py::test_what_the_ledger_in_place_spent_on_a_line_of_its_own_is_charged",
        "privacy/test_ledger_copies.py::test_every_copy_of_the_lost_line_is_refused_afterwards",
        "privacy/test_ledger_copies.py::"
        "test_in_any_order_of_spending_backing_up_losing_and_restoring_nothing_is_forgotten",
        "surfaces/test_cli_ledger.py::test_every_command_notices_an_older_ledger",
        "driver/test_connection.py::test_a_restored_or_deleted_ledger_is_refused_where_it_is_anchored",
        "release/test_bookkeeping.py::test_a_new_ledger_never_takes_the_place_of_one_that_is_missing",
        "release/test_bookkeeping.py::test_two_files_of_a_connection_are_never_one",
        "assurance/test_replaced_files.py::test_a_ledger_replaced_under_the_connection_is_refused",
        "assurance/test_corrupted_ledger.py::test_every_region_flipped",
    ), "without an anchor only a releases file that holds more can tell an older copy from the present"),
    Threat("L6", "answers used again", (
        "driver/test_connection.py::test_a_changed_row_changes_neither_reuse_nor_charge",
        "driver/test_connection.py::test_another_version_of_the_data_needs_to_be_declared",
        "release/test_bookkeeping.py::test_a_new_version_of_the_data_is_declared_and_spending_goes_on",
    )),
    Threat("L7", "composition of unlike releases", (
        "privacy/test_accountant.py::test_testing_delta_on_the_history_lets_an_adaptive_analyst_past_it",
        "privacy/test_accountant.py::test_crediting_a_pure_release_as_mu_equal_epsilon_claims_too_much",
        "privacy/test_accountant.py::test_two_accounts_hold_against_the_same_analyst",
        "privacy/test_accounting_library.py::test_the_sum_of_mu_squared_is_what_composition_gives",
        "privacy/test_accounting_library.py::test_both_accounts_spent_to_the_end_stay_within_the_policy",
    )),
    Threat("A1", "broken noise", (
        "privacy/test_noise_laws.py::test_draws_follow_the_law_and_wrong_scales_are_caught",
        "privacy/test_noise_laws.py::test_draws_are_uncorrelated",
        "extensions/audit/test_mutants.py::test_the_audit_catches_a_mutant",
    )),
    Threat("A2", "privacy end to end", (
        "extensions/audit/test_audit.py::test_mu_of_neighbouring_tables",
        "extensions/audit/test_audit.py::test_a_doubled_rho_at_a_thousand_trials",
        "extensions/audit/test_audit.py::test_epsilon_of_neighbouring_tables",
    )),
    Threat("N1", "a claimed sensitivity", (
        "measure/test_sensitivity.py::test_every_small_table_against_every_neighbour",
        "extensions/audit/test_audit_report.py::test_the_claim_is_attained_and_never_passed",
    )),
    Threat("R1", "randomness that repeats", (
        "privacy/test_noise.py::test_forked_processes_draw_different_noise",
        "privacy/test_noise.py::test_nothing_near_private_data_has_a_seeded_generator",
        "extensions/audit/test_audit.py::test_noise_is_fresh_and_from_the_system",
        "extensions/local/device/test_response.py::test_forked_processes_draw_different_lies",
        "extensions/local/device/test_response.py::test_only_tests_choose_an_entropy_source",
    )),
    Threat("P1", "plans that leak", (
        "driver/test_connection.py::test_plans_of_neighbours_are_equal_byte_for_byte",
        "driver/test_connection.py::test_a_plan_is_free_and_touches_no_row",
    )),
    Threat("R2", "randomised response", (
        "extensions/local/device/test_response.py::test_the_ratio_of_probabilities_is_at_most_e_to_the_epsilon",
        "extensions/local/device/test_response.py::test_a_law_that_claims_too_little_cannot_be_made",
        "extensions/local/device/test_response.py::test_draws_follow_the_law_and_wrong_laws_are_caught",
        "extensions/local/device/test_response.py::test_replacing_one_row_changes_no_output_by_more_than_the_ratio",
        "extensions/local/device/test_response.py::test_a_unit_pays_for_each_of_its_rows",
        "extensions/local/device/test_domain.py::test_every_value_has_a_category",
        "extensions/local/device/test_randomise.py::test_sixty_releases_of_one_record_show_the_truth",
        "test_imports.py::test_the_room_that_draws_on_a_device_reaches_no_database",
        "extensions/local/test_local_audit.py::test_the_released_table_keeps_the_law",
        "extensions/local/test_local_audit.py::test_a_wrong_randomiser_is_caught",
        "extensions/local/test_local_release.py::test_rows_are_randomised_once",
        "extensions/local/test_local_release.py::test_of_two_at_once_one_is_released",
        "extensions/local/test_local_release.py::test_kill_9_leaves_the_charge_and_no_rows",
        "extensions/local/test_local_release.py::test_the_charge_is_epsilon_for_each_row_that_a_unit_may_have",
        "extensions/local/test_local_release.py::test_every_row_has_its_place_and_the_order_of_the_table_is_gone",
        "test_imports.py::test_lies_are_drawn_after_the_charge_and_before_the_rows_are_read",
    ), "tables behind a policy, once by the ledger; of records on a person's own device it is up to the program there"),
    Threat("D1", "denial of service", (
        "sql/test_refusals.py::test_refused",
        "assurance/test_size_limits.py::test_a_batch_that_is_too_large_is_refused",
        "workloads/test_cells.py::test_work_is_capped",
        "strategies/test_strategy_refusals.py::test_sizes_past_the_bounds_are_refused_before_memory_is_taken",
    )),
)  # fmt: skip

IDS = (
    *(f"F{i}" for i in range(1, 8)),
    *(f"Q{i}" for i in range(1, 13)),
    *(f"L{i}" for i in range(1, 8)),
    *("A1", "A2", "N1", "R1", "P1", "R2", "D1"),
)
