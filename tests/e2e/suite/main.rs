//! The end-to-end tests. `cargo test -p pilothouse-e2e` runs them on the embedded API server, `PILOTHOUSE_E2E=real` before
//! it on etcd and kube-apiserver; both need what `make build` leaves.

mod access;
mod children;
mod conflicts;
mod definitions;
mod grants;
mod kubectl;
mod outages;
mod quiet;
mod reload;
mod server;
mod thousand;

use std::process::ExitCode;

use pilothouse_e2e::{suite, tests};

fn main() -> ExitCode {
    suite::run(tests! {
        access { a_host_that_may_do_nothing_says_so }
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
        conflicts {
            an_object_of_somebody_else_is_not_taken_over,
            a_writer_that_keeps_editing_a_child_loses_every_time,
            a_manager_that_forces_its_way_loses_too,
        }
        definitions {
            a_kind_that_appears_after_the_plugin_is_served,
            a_kind_that_is_deleted_and_comes_back_is_served_again,
        }
        grants {
            a_plugin_without_a_yaml_is_refused_with_what_to_write,
            a_disabled_plugin_does_nothing,
            a_write_that_is_not_granted_is_not_sent,
            a_namespace_that_is_not_granted_is_left_alone,
        }
        kubectl {
            kubectl_sees_and_steers_everything,
            kubectl_works_with_the_development_server,
        }
        outages {
            an_unreachable_api_server_is_waited_for,
            a_restarted_api_server_is_found_again,
            a_host_killed_in_the_middle_loses_nothing,
            a_host_terminated_in_the_middle_loses_nothing,
            what_changes_while_the_host_is_down_is_made_good,
            sigterm_under_load_ends_with_success,
        }
        quiet {
            a_restarted_host_sends_no_write_request,
            a_reconcile_that_changes_nothing_sends_no_request,
        }
        reload {
            a_plugin_replaced_under_load_loses_no_change_and_fails_no_reconcile,
            garbage_in_place_of_a_plugin_is_reported_and_the_old_revision_goes_on,
            a_half_written_plugin_is_reported_until_it_is_whole,
            a_removed_plugin_stops_and_the_others_go_on,
            a_new_plugin_starts_without_a_restart,
        }
        server {
            a_killed_api_server_comes_back_with_its_data,
            writes_are_counted_and_reads_are_not,
        }
        thousand { a_thousand_myapples_converge }
    })
}
