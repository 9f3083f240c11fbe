//! The end-to-end tests. `cargo test -p pilothouse-e2e` runs them on the embedded API server. With
//! `PILOTHOUSE_E2E=real` they run on etcd and kube-apiserver. Run `make build` first.

mod access;
mod auditor;
mod bundle;
mod chart;
mod children;
mod code;
mod collect;
mod conflicts;
mod connections;
mod contract;
mod definitions;
mod deployment;
mod election;
mod endpoints;
mod events;
mod failover;
mod figures;
mod finalizers;
mod fixtures;
mod grants;
mod hooks;
mod hostile;
mod http;
mod identity;
mod image;
mod install;
mod instances;
mod kubectl;
mod kubediff;
mod metrics;
mod outages;
mod pod;
mod proxies;
mod quiet;
mod rbac;
mod reaching;
mod reads;
mod references;
mod refusals;
mod registry_policy;
mod reload;
mod resource_watch;
mod restores;
mod server;
mod spread;
mod starvation;
mod text;
mod thousand;
mod troubles;
mod watches;
mod ways;
mod webhooks;
mod website;

use std::process::ExitCode;

use pilothouse_e2e::{suite, tests};

fn main() -> ExitCode {
    suite::run(tests! {
        access { a_host_that_may_do_nothing_says_so }
        auditor { what_breaks_a_rule_is_reported_until_it_is_repaired }
        bundle { invariant_11_a_bundle_follows_whatever_it_read }
        chart {
            helm_finds_no_fault_in_the_chart_and_makes_what_manifests_prints,
            the_api_server_accepts_every_object_of_the_chart_without_a_warning,
        }
        children {
            a_myapple_gets_its_children_and_its_status,
            more_are_added_and_the_surplus_is_removed,
            a_changed_spec_changes_every_child,
            an_edited_child_is_set_back,
            a_field_that_the_plugin_does_not_name_is_left_alone,
            a_deleted_child_returns,
            children_go_with_their_myapple,
            a_myapple_of_the_same_name_gets_children_of_its_own,
        }
        code {
            a_second_start_compiles_nothing,
            a_plugin_serves_before_its_code_is_optimized_and_goes_on,
            what_the_baseline_compiler_does_not_know_is_compiled_by_the_other,
            a_plugin_whose_code_cannot_be_optimized_serves_as_it_is,
            an_optimization_gives_way_to_a_new_file_and_ends_after_it,
            a_cache_without_room_costs_no_plugin,
            damaged_code_is_not_run_and_compiled_anew,
            a_directory_that_others_may_write_to_is_not_used_and_the_plugin_serves,
            a_compiler_has_bounds_and_runs_after_serving_threads,
            a_file_that_kills_its_compiler_costs_nobody_else_anything,
            a_file_that_takes_its_compilers_memory_costs_nobody_else_anything,
            a_file_that_needs_more_memory_than_the_container_leaves_is_refused_and_the_host_goes_on,
            a_file_over_which_the_host_ended_again_and_again_waits_before_it_is_compiled,
            a_host_killed_in_the_middle_of_a_compilation_leaves_nothing_and_serves_when_it_is_back,
            a_host_killed_at_any_moment_leaves_no_damaged_code_and_loses_no_work,
        }
        collect { objects_of_a_cluster_become_a_case_without_secrets }
        conflicts {
            an_object_of_somebody_else_is_not_taken_over,
            an_object_that_the_cache_lacks_is_neither_taken_over_nor_collected,
            a_child_that_somebody_took_away_unseen_is_not_pruned,
            a_writer_that_keeps_editing_a_child_loses_every_time,
            a_manager_that_forces_its_way_loses_too,
        }
        connections { many_watches_share_a_few_connections }
        contract {
            invariant_3_a_plugin_sees_its_own_writes_in_the_same_call,
            a_child_that_may_be_adopted_is_taken_over,
            a_child_whose_fields_are_immutable_is_replaced_only_if_the_plugin_asks_for_it,
            a_status_that_its_own_children_made_old_is_left_to_the_next_call_and_to_no_further_one,
            a_status_is_not_left_to_a_call_that_waits_nor_for_children_that_were_not_read,
            a_status_that_was_left_to_a_call_without_one_is_written_after_it,
            a_plugin_that_asks_to_be_called_again_is,
            a_failed_call_is_retried_and_learns_why,
            a_terminal_failure_is_not_tried_again_until_something_changes,
            invariant_10_a_call_in_flight_at_sigterm_is_finished,
        }
        definitions {
            a_kind_that_appears_after_the_plugin_is_served,
            a_kind_that_is_deleted_and_comes_back_is_served_again,
        }
        deployment {
            a_new_deployment_is_labelled_annotated_and_becomes_available,
            a_rolling_update_adopts_a_replica_set_and_replaces_its_pods,
            recreate_deletes_every_old_pod_before_it_creates_a_new_one,
            old_replica_sets_beyond_the_limit_are_deleted,
            a_rollover_ends_with_the_last_template,
            rollouts_that_are_changed_at_random_end,
            a_deleted_deployment_takes_its_replica_sets_and_pods_along,
            replica_sets_of_a_deleted_deployment_are_orphaned_and_adopted,
            deployments_and_replica_sets_follow_their_scale,
            a_deployment_that_is_scaled_while_it_rolls_out_grows_in_proportion,
            a_paused_deployment_scales_and_does_not_roll_out,
            a_collision_of_hashes_is_counted_and_avoided,
            a_rollout_without_progress_is_late_and_can_be_undone,
            overlapping_deployments_do_not_touch_each_other,
            a_deployment_is_available_after_min_ready_seconds,
            replica_sets_are_adopted_and_released_by_their_labels,
            pods_are_adopted_and_released_by_their_labels,
            a_replica_set_replaces_failed_and_deleted_pods_and_deletes_the_cheapest,
            conditions_of_others_stay_in_the_status,
            kubectl_rolls_out_and_back,
            kubectl_rolls_out_on_the_development_server,
        }
        election {
            a_standby_is_warm_and_takes_over_when_the_active_host_ends,
            a_standby_takes_over_when_the_active_host_is_gone,
            a_host_that_was_stopped_writes_nothing_when_it_goes_on,
            a_host_that_may_not_take_the_lease_says_so_and_what_to_do,
        }
        endpoints { invariant_7_only_those_whom_rbac_lets_see_metrics_and_debug_or_release }
        events {
            a_transition_that_a_repeated_call_reports_twice_is_one_event,
            invariant_7_an_event_that_is_not_granted_is_not_written_and_the_plugin_goes_on,
            invariant_8_events_that_the_server_refuses_cost_nothing_else,
        }
        failover {
            an_acting_host_that_is_struck_is_followed_by_one_other_and_nothing_is_lost,
            without_leader_election_two_hosts_are_found_at_one_key,
            a_rolling_update_of_hosts_that_share_plugins_moves_each_twice_at_most_and_loses_nothing,
        }
        figures { figures_of_a_plugin_carry_its_name_alone }
        finalizers {
            an_object_has_the_finalizer_before_its_first_call_and_goes_after_its_cleanup,
            an_object_that_was_deleted_while_no_host_ran_is_cleaned_up,
            invariant_7_a_finalizer_that_is_not_granted_is_not_written_and_nothing_is_called,
            objects_that_keep_the_finalizer_of_a_removed_plugin_are_named,
        }
        fixtures {
            modules_of_each_version_of_the_contract_reconcile_and_review,
            components_of_each_version_of_the_contract_reconcile_and_review,
        }
        grants {
            a_plugin_without_a_yaml_is_refused_with_what_to_write,
            a_disabled_plugin_does_nothing,
            invariant_7_a_write_that_is_not_granted_is_not_sent,
            a_namespace_that_is_not_granted_is_left_alone,
            invariant_7_a_trespasser_is_denied_every_step,
        }
        hooks {
            each_mapping_wakes_the_keys_that_it_names,
            invariant_8_a_mapper_that_fails_costs_itself_that_change,
            an_observer_gets_every_change_in_order,
            invariant_8_an_observer_that_fails_holds_up_nobody,
        }
        hostile {
            invariant_8_a_plugin_that_holds_its_thread_costs_nobody_else_anything,
            invariant_8_a_plugin_that_would_hear_of_everything_costs_nobody_else_anything,
            invariant_8_a_plugin_whose_predicates_take_long_costs_nobody_else_anything,
            invariant_12_a_plugin_that_selects_the_same_many_times_has_it_once,
            invariant_12_a_plugin_that_reads_by_very_much_is_remembered_within_its_memory,
            invariant_12_a_plugin_that_reads_very_long_names_costs_nobody_else_anything,
            invariant_12_a_plugin_of_very_many_controllers_costs_nobody_else_anything,
            invariant_8_a_plugin_that_loops_costs_itself_one_call,
            invariant_8_a_plugin_that_asks_the_host_for_ever_costs_itself_one_call,
            invariant_8_a_plugin_that_calls_the_host_too_often_costs_itself_one_call,
            invariant_8_a_plugin_that_reads_too_many_bytes_costs_itself_one_call,
            invariant_8_a_plugin_that_asks_by_more_than_there_can_be_costs_itself_one_call,
            invariant_8_a_plugin_that_waits_for_the_server_costs_itself_one_call,
            invariant_8_a_plugin_that_floods_the_server_with_reads_costs_nobody_else_anything,
            invariant_8_a_plugin_that_floods_the_server_with_writes_costs_nobody_else_anything,
            invariant_8_a_plugin_that_asks_for_requests_for_ever_costs_itself_one_call,
            invariant_8_a_plugin_that_draws_random_numbers_for_ever_costs_itself_one_call,
            invariant_8_a_plugin_that_writes_to_stdout_for_ever_costs_itself_one_call,
            invariant_8_a_plugin_that_floods_the_server_with_batches_costs_nobody_else_anything,
            invariant_8_a_plugin_that_floods_another_server_costs_nobody_else_anything,
            invariant_12_a_plugin_that_asks_for_other_watches_in_each_call_costs_nobody_else_anything,
            invariant_12_a_plugin_that_floods_the_host_with_series_has_a_thousand_of_them,
            invariant_8_a_plugin_that_traps_costs_itself_one_call,
            invariant_8_a_plugin_that_exhausts_memory_costs_itself_one_call,
            invariant_8_a_plugin_that_exhausts_a_table_costs_itself_one_call,
            invariant_8_a_plugin_that_exhausts_its_stack_costs_itself_one_call,
            invariant_8_a_plugin_that_exhausts_the_stack_in_its_memory_costs_itself_one_call,
            invariant_8_a_plugin_that_calls_while_it_is_called_costs_itself_one_call,
            invariant_8_a_plugin_that_hands_over_garbled_text_costs_itself_one_call,
            invariant_8_a_plugin_that_answers_too_much_costs_itself_one_call,
            invariant_8_a_plugin_that_floods_the_log_costs_nobody_else_anything,
            invariant_8_a_plugin_that_floods_the_cluster_with_events_costs_nobody_else_anything,
            invariant_8_all_of_them_at_once_cost_nobody_else_anything,
            invariant_8_a_plugin_that_answers_nonsense_costs_itself_one_call,
            a_plugin_that_cannot_be_used_is_refused_with_the_reason,
            a_plugin_that_misbehaves_while_an_instance_is_made_is_refused_with_the_reason,
        }
        http {
            invariant_7_requests_reach_only_the_servers_that_are_granted,
            invariant_7_requests_to_a_server_end_when_its_grant_is_withdrawn,
        }
        identity {
            writes_are_judged_as_the_plugins_account,
            invariant_7_a_right_that_is_lost_stops_the_reads_of_the_cache,
            an_account_that_cannot_be_checked_or_impersonated_is_named,
        }
        image {
            an_image_has_what_the_host_needs_and_is_the_same_each_time,
            a_host_works_in_the_files_of_its_image_alone,
        }
        install { every_example_plugin_works_in_the_deployments_pod_with_the_printed_rights_alone }
        instances { an_instance_that_is_kept_remembers_and_that_of_another_revision_does_not }
        metrics {
            a_plugins_metrics_are_exported_until_it_is_removed,
            plugins_that_disagree_about_a_metric_leave_the_exposition_valid,
        }
        kubectl {
            kubectl_sees_and_steers_everything,
            kubectl_works_with_the_development_server,
            kubectl_describe_says_why_an_object_is_not_reconciled,
        }
        kubediff { each_change_is_reported_field_by_field_and_no_secret_is }
        outages {
            an_unreachable_api_server_is_waited_for,
            a_restarted_api_server_is_found_again,
            a_restart_of_api_server_or_etcd_begins_no_more_than_a_list_of_each_kind,
            a_host_killed_in_the_middle_loses_nothing,
            a_host_terminated_in_the_middle_loses_nothing,
            invariant_5_what_changes_while_the_host_is_down_is_made_good,
            invariant_10_sigterm_under_load_ends_with_success,
        }
        pod { a_pods_service_account_is_used_and_its_rotated_token_followed }
        proxies {
            a_host_works_through_an_http_proxy_of_its_kubeconfig,
            a_host_works_through_a_socks_proxy_of_its_kubeconfig,
        }
        quiet {
            a_restarted_host_sends_no_write_request,
            a_renamed_plugin_keeps_its_children_by_its_identity_and_is_warned_without_it,
            a_reconcile_that_changes_nothing_sends_no_request,
            children_that_the_server_stores_in_another_form_are_sent_once,
            ordinary_children_cost_no_request_after_a_restart_either_and_foreign_changes_are_repaired,
        }
        rbac {
            the_printed_rules_are_enough_and_without_any_of_them_a_named_thing_fails,
            the_rules_for_webhooks_references_patterns_and_tokens_are_needed_too,
        }
        reaching { a_plugin_lists_scales_reviews_evicts_and_reads_logs_within_its_grants }
        reads {
            invariant_11_a_key_is_woken_by_the_object_the_selection_and_the_absence_that_it_read,
            a_list_of_any_length_comes_page_by_page,
            invariant_7_a_read_that_is_not_granted_is_denied_and_one_that_is_wrong_is_refused,
        }
        references {
            a_configuration_follows_the_secret_that_it_refers_to_and_no_log_has_its_value,
        }
        refusals {
            what_a_webhook_answers_reaches_the_client_in_the_words_of_kube_apiserver,
            a_webhook_that_cannot_be_called_is_told_in_the_words_of_kube_apiserver,
            a_match_condition_that_fails_is_told_in_the_words_of_kube_apiserver,
            a_conversion_that_fails_is_told_in_the_words_of_kube_apiserver,
        }
        registry_policy { images_of_other_registries_are_denied_through_the_api_server }
        reload {
            invariant_9_a_plugin_replaced_under_load_loses_no_change_and_fails_no_reconcile,
            a_new_revision_takes_effect_on_every_object,
            invariant_9_garbage_in_place_of_a_plugin_is_reported_and_the_old_revision_goes_on,
            a_half_written_plugin_is_reported_until_it_is_whole,
            a_removed_plugin_stops_and_the_others_go_on,
            a_new_plugin_starts_without_a_restart,
        }
        resource_watch { kinds_that_a_custom_resource_names_are_counted_and_listed }
        restores {
            invariant_4_a_server_whose_versions_went_back_is_followed,
            invariant_4_a_server_whose_versions_were_raised_is_followed,
        }
        server {
            a_killed_api_server_comes_back_with_its_data,
            writes_are_counted_and_reads_are_not,
            a_variable_that_is_named_again_is_warned_of_and_cannot_be_applied,
        }
        spread {
            hosts_share_plugins_and_one_that_joins_gets_some,
            plugins_of_a_killed_host_are_others_when_its_lease_has_expired,
            a_stopped_host_writes_nothing_for_plugins_that_are_others_meanwhile,
            hosts_that_share_and_hosts_that_elect_one_do_not_act_at_once,
        }
        starvation { a_host_that_the_server_throttles_says_so_waits_and_loses_nothing }
        text {
            a_child_a_status_and_an_apply_keep_every_character,
            any_text_key_and_number_is_stored_as_it_was_applied,
            yaml_is_read_as_kubernetes_reads_it,
            invariant_5_an_object_that_nests_too_deep_shows_as_unreadable_and_its_deletion_is_reconciled,
        }
        thousand { a_thousand_myapples_converge }
        troubles { quarantine_failing_keys_and_storms_are_shown_with_their_reasons }
        watches {
            a_kind_that_an_object_names_is_cached_and_wakes_it_until_it_names_another,
            kinds_that_a_pattern_matches_are_observed_as_they_come_and_go,
            kinds_beyond_limits_watches_are_left_out_and_named,
            an_aggregated_group_that_comes_fails_and_goes_stops_no_other_kind,
            invariant_7_a_kind_that_is_asked_for_and_not_granted_is_refused_in_words,
        }
        ways {
            a_proxy_of_the_environment_is_used_for_servers_that_no_proxy_does_not_name,
            a_list_of_kubeconfigs_has_missing_files_and_relative_paths,
            a_server_is_reached_by_ipv6,
            an_exec_plugin_is_asked_again_when_its_certificate_ends,
            an_exec_plugin_is_asked_again_when_its_token_ends,
            an_authority_that_rotates_is_followed,
        }
        webhooks {
            an_image_policy_in_a_config_map_denies_a_pod,
            a_webhook_that_is_not_granted_has_no_configuration,
            a_removed_plugin_has_no_configuration_and_an_edited_one_is_set_back,
            a_host_that_is_down_leaves_it_to_the_failure_policy,
            certificates_change_under_load_and_no_call_fails,
            a_plugin_is_replaced_under_load_and_no_call_fails,
            invariant_8_a_review_that_fails_costs_itself_one_call,
            objects_are_converted_between_versions,
        }
        website {
            a_website_is_rolled_out_registered_scaled_and_cleaned_up,
            with_the_stand_ins_of_dev_a_website_becomes_ready,
        }
    })
}
