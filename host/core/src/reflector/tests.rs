//! Every transition as a line of a [script](script).
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use self::script::{config, play};
use super::*;

pub(super) mod script;

/// To a watch that goes on from version 7, by a streaming list.
const STREAMED: &str = "
    start      => resolving, resolve
    resolved   => listing, stream
    opened     => begin
    added a@5  => upsert a@5
    complete 7 => finish 7, synced, watching
";

/// To a watch from version 7, by pages, because streaming was refused.
const PAGED: &str = "
    start          => resolving, resolve
    resolved       => listing, stream
    status 400     => list 500
    page 7 a@5 b@6 => begin, upsert a@5, upsert b@6, finish 7, synced, watch 7
    opened         => watching
";

macro_rules! facts {
    ($($(#[$comment:meta])* $name:ident { $($script:expr),+ })*) => {
        $($(#[$comment])* #[test] fn $name() { play(&[$($script),+]); })*
    };
}

facts! {
    a_streaming_list_ends_in_the_watch_that_it_is { "
        start         => resolving, resolve
        resolved      => listing, stream
        opened        => begin
        added a@5     => upsert a@5
        added b@3     => upsert b@3
        deleted b@7   => remove b@7
        modified a@8  => upsert a@8
        complete 8    => finish 8, synced, watching
        modified a@9  => upsert a@9
        ended         => watch 9
    " }

    a_list_goes_by_pages_and_its_first_page_says_its_version { "
        start              => resolving, resolve
        resolved           => listing, stream
        status 422         => list 500
        page 7 a@5 b@6 + T => begin, upsert a@5, upsert b@6, list 500 from T
        page 8 c@4 + U     => upsert c@4, list 500 from U
        page 9 d@2         => upsert d@2, finish 7, synced, watch 7
        opened             => watching
    " }

    an_empty_list_is_complete { "
        start      => resolving, resolve
        resolved   => listing, stream
        status 400 => list 500
        page 7     => begin, finish 7, synced, watch 7
    " }

    streaming_that_is_refused_is_not_tried_again {
        "
        start                       => resolving, resolve
        resolved                    => listing, stream
        status 403 sendInitialEvents => list 500
        page 7                      => begin, finish 7, synced, watch 7
        opened                      => watching
        error 410                   => relist expired, resolving, resolve
        resolved                    => listing, list 500
        "
    }

    streaming_that_is_refused_by_an_event_is_not_tried_again { "
        start     => resolving, resolve
        resolved  => listing, stream
        opened    => begin
        error 422 => abort, list 500
        page 7    => begin, finish 7, synced, watch 7
        opened    => watching
        error 410 => relist expired, resolving, resolve
        resolved  => listing, list 500
    " }

    streaming_that_etcd_cannot_do_is_not_tried_again { "
        start                           => resolving, resolve
        resolved                        => listing, stream
        opened                          => begin
        error 500 RequestWatchProgress  => abort, list 500
        page 7                          => begin, finish 7, synced, watch 7
        opened                          => watching
        error 410                       => relist expired, resolving, resolve
        resolved                        => listing, list 500
    " }

    streaming_that_the_server_does_not_know_is_not_tried_again { "
        start      => resolving, resolve
        resolved   => listing, stream
        opened     => begin
        added a@5  => upsert a@5
        bookmark 7 => abort, list 500
        page 7 a@5 => begin, upsert a@5, finish 7, synced, watch 7
        opened     => watching
        error 410  => relist expired, resolving, resolve
        resolved   => listing, list 500
    " }

    a_kind_that_comes_back_is_asked_to_stream_again { PAGED, "
        status 404 => missing, wait 0.5..1
        elapsed    => resolve
        resolved   => relist reappeared, listing, stream
    " }

    a_streaming_list_that_breaks_off_is_repeated_by_pages_once { "
        start      => resolving, resolve
        resolved   => listing, stream
        opened     => begin
        added a@5  => upsert a@5
        cut        => abort, waiting, wait 0.8..1.6
        elapsed    => listing, list 500
        page 7 a@5 => begin, upsert a@5, finish 7, synced, watch 7
        opened     => watching
        error 410  => relist expired, resolving, resolve
        resolved   => listing, stream
    " }

    a_streaming_list_that_ends_early_is_repeated_by_pages { "
        start     => resolving, resolve
        resolved  => listing, stream
        opened    => begin
        ended     => abort, waiting, wait 0.8..1.6
        elapsed   => listing, list 500
    " }

    a_streaming_list_that_fails_with_an_unknown_error_is_repeated_by_pages { "
        start      => resolving, resolve
        resolved   => listing, stream
        status 500 => waiting, wait 0.8..1.6
        elapsed    => listing, list 500
    " }

    a_busy_or_unreachable_server_is_asked_to_stream_again { "
        start                      => resolving, resolve
        resolved                   => listing, stream
        status 429                 => waiting, wait 0.8..1.6
        elapsed                    => listing, stream
        cut                        => waiting, wait 1.6..3.2
        elapsed                    => listing, stream
        status 504 too large after 1 => waiting, wait 3.2..6.4
        elapsed                    => listing, stream
    " }

    a_streaming_list_without_a_number_for_its_version_is_repeated_by_pages { "
        start        => resolving, resolve
        resolved     => listing, stream
        opened       => begin
        complete abc => abort, waiting, wait 0.8..1.6
        elapsed      => listing, list 500
    " }

    a_list_without_a_number_for_its_version_is_refused { "
        start      => resolving, resolve
        resolved   => listing, stream
        status 400 => list 500
        page 0x7   => waiting, wait 0.8..1.6
        elapsed    => listing, list 500
        body {\"metadata\":{},\"items\":[]} => waiting, wait 1.6..3.2
        elapsed    => listing, list 500
        page 7     => begin, finish 7, synced, watch 7
    " }

    a_page_that_fails_is_asked_for_again { "
        start          => resolving, resolve
        resolved       => listing, stream
        status 400     => list 500
        page 7 a@5 + T => begin, upsert a@5, list 500 from T
        cut            => waiting, wait 0.8..1.6
        elapsed        => listing, list 500 from T
        body <html>    => waiting, wait 1.6..3.2
        elapsed        => listing, list 500 from T
        status 503     => waiting, wait 3.2..6.4
        elapsed        => listing, list 500 from T
        status 403     => denied, wait 30..33
        elapsed        => listing, list 500 from T
        page 7 b@6     => upsert b@6, finish 7, synced, watch 7
    " }

    an_expired_continue_token_falls_back_to_one_unpaged_list { "
        start          => resolving, resolve
        resolved       => listing, stream
        status 400     => list 500
        page 7 a@5 + T => begin, upsert a@5, list 500 from T
        status 410     => abort, list all since 7
        page 9 a@5 b@8 => begin, upsert a@5, upsert b@8, finish 9, synced, watch 9
    " }

    an_unpaged_list_that_fails_is_asked_for_again { "
        start          => resolving, resolve
        resolved       => listing, stream
        status 400     => list 500
        page 7 a@5 + T => begin, upsert a@5, list 500 from T
        status 410     => abort, list all since 7
        cut            => waiting, wait 0.8..1.6
        elapsed        => listing, list all since 7
    " }

    an_unpaged_list_whose_version_has_not_come_begins_anew { "
        start                      => resolving, resolve
        resolved                   => listing, stream
        status 400                 => list 500
        page 7 a@5 + T             => begin, upsert a@5, list 500 from T
        status 410                 => abort, list all since 7
        status 504 too large after 2 => waiting, wait 2..2.1
        elapsed                    => listing, list 500
    " }

    a_410_that_has_no_token_to_blame_begins_anew_after_a_wait { "
        start      => resolving, resolve
        resolved   => listing, stream
        status 400 => list 500
        status 410 => waiting, wait 0.8..1.6
        elapsed    => listing, list 500
    " }

    a_continue_token_that_leads_to_itself_is_not_followed { "
        start          => resolving, resolve
        resolved       => listing, stream
        status 400     => list 500
        page 7 a@5 + T => begin, upsert a@5, list 500 from T
        page 7 a@5 + T => upsert a@5, abort, waiting, wait 0.8..1.6
        elapsed        => listing, list 500
    " }

    a_clean_end_is_followed_by_a_watch_from_the_last_version { STREAMED, "
        modified a@8 => upsert a@8
        ended        => watch 8
        opened       =>
        bookmark 12  => covered 12
        pass 300
        ended        => watch 12
        opened       =>
        deleted a@13 => remove a@13
        ended        => watch 13
    " }

    a_quiet_watch_that_ends_is_opened_again_at_once { STREAMED, "
        pass 6
        ended  => watch 7
    " }

    a_short_watch_with_an_event_is_opened_again_at_once { STREAMED, "
        modified a@8 => upsert a@8
        ended        => watch 8
        opened       =>
        modified a@9 => upsert a@9
        ended        => watch 9
    " }

    watches_that_end_as_they_begin_back_off { STREAMED, "
        ended      => waiting, wait 0.8..1.6
        elapsed    => list 1
        page 7     => watch 7
        opened     => watching
        bookmark 8 => covered 8
        ended      => waiting, wait 1.6..3.2
        elapsed    => list 1
        page 8     => watch 8
        ended      => waiting, wait 3.2..6.4
        elapsed    => list 1
        page 8     => watch 8
    " }

    versions_do_not_fall_during_a_watch { STREAMED, "
        modified a@9 => upsert a@9
        modified b@8 => upsert b@8
        bookmark 6   =>
        bookmark x   =>
        ended        => watch 9
    " }

    a_lost_connection_is_resumed_without_a_list_and_waits_ever_longer { STREAMED, "
        modified a@8 => upsert a@8
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        page 8       => watch 8
        cut          => waiting, wait 1.6..3.2
        elapsed      => list 1
        page 8       => watch 8
        opened       => watching
        modified a@9 => upsert a@9
        pass 119
        cut          => waiting, wait 3.2..6.4
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 6.4..12.8
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 12.8..25.6
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 25.6..51.2
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 30..60
        elapsed      => list 1
        page 9       => watch 9
        cut          => waiting, wait 30..60
    " }

    two_minutes_of_watching_make_the_next_wait_short_again { STREAMED, "
        cut         => waiting, wait 0.8..1.6
        elapsed     => list 1
        page 7      => watch 7
        cut         => waiting, wait 1.6..3.2
        elapsed     => list 1
        page 7      => watch 7
        opened      => watching
        bookmark 8  => covered 8
        pass 60
        ended       => watch 8
        opened      =>
        bookmark 9  => covered 9
        pass 60
        cut         => waiting, wait 0.8..1.6
    " }

    an_expired_version_as_event_is_listed_anew_at_once { STREAMED, "
        error 410    => relist expired, resolving, resolve
        resolved     => listing, stream
        opened       => begin
        added a@5    => upsert a@5
        complete 12  => finish 12, watching
    " }

    an_expired_version_as_status_is_listed_anew_at_once { PAGED, "
        modified a@8 => upsert a@8
        ended        => watch 8
        status 410   => relist expired, resolving, resolve
        resolved     => listing, list 500
        page 12 b@6  => begin, upsert b@6, finish 12, watch 12
        opened       => watching
    " }

    versions_that_expire_again_and_again_back_off { PAGED, "
        error 410  => relist expired, resolving, resolve
        resolved   => listing, list 500
        page 8     => begin, finish 8, watch 8
        opened     => watching
        error 410  => relist expired, waiting, wait 1.6..3.2
        elapsed    => resolve
        resolved   => listing, list 500
        page 9     => begin, finish 9, watch 9
        status 410 => relist expired, waiting, wait 3.2..6.4
        elapsed    => resolve
        resolved   => listing, list 500
        page 9     => begin, finish 9, watch 9
        opened     => watching
        bookmark 9 => covered 9
        pass 120
        error 410  => relist expired, resolving, resolve
        resolved   => listing, list 500
    " }

    a_version_that_has_not_come_yet_is_listed_anew { PAGED, "
        ended                      => waiting, wait 0.8..1.6
        elapsed                    => list 1
        page 7                     => watch 7
        status 504 too large after 1 => relist too_large, waiting, wait 1..1.6
        elapsed                    => resolve
        resolved                   => listing, list 500
    " }

    a_watch_that_is_not_accepted_is_listed_anew_ever_more_slowly { PAGED, "
        error 400  => relist refused, resolving, resolve
        resolved   => listing, list 500
        page 7     => begin, finish 7, watch 7
        status 405 => relist refused, waiting, wait 1.6..3.2
    " }

    a_server_error_is_no_reason_to_list { STREAMED, "
        error 500  => waiting, wait 0.8..1.6
        elapsed    => list 1
        page 7     => watch 7
        status 504 => waiting, wait 1.6..3.2
        elapsed    => list 1
        page 7     => watch 7
    " }

    retry_after_is_honoured_and_bounded { STREAMED, "
        error 503 after 7       => waiting, wait 7..7.1
        elapsed                 => list 1
        page 7                  => watch 7
        status 429 after 20     => waiting, wait 20..20.1
        elapsed                 => list 1
        page 7                  => watch 7
        status 429 after 1      => waiting, wait 3.2..6.4
        elapsed                 => list 1
        page 7                  => watch 7
        status 429 after 999999 => waiting, wait 60..60.1
    " }

    a_kind_that_is_gone_for_a_minute_has_no_objects { STREAMED, "
        status 404 => missing, wait 0.5..1
        elapsed    => resolve
        gone       => missing, wait 1..2
        pass 58
        elapsed    => resolve
        gone       => wait 2..4
        elapsed    => resolve
        gone       => begin back, finish 7, wait 2.5..5
        pass 600
        elapsed    => resolve
        gone       => wait 2.5..5
        elapsed    => resolve
        resolved   => relist reappeared, listing, stream
        opened     => begin
        added a@90 => upsert a@90
        complete 91 => finish 91, watching
    " }

    a_kind_that_is_gone_and_not_only_gone_keeps_its_objects { STREAMED, "
        status 404 => missing, wait 0.5..1
        elapsed    => resolve
        gone       => missing, wait 1..2
        pass 50
        elapsed    => resolve
        status 503 => waiting, wait 0.8..1.6
        elapsed    => resolve
        gone       => missing, wait 2..4
        pass 50
        elapsed    => resolve
        missing    => missing, wait 2.5..5
        elapsed    => resolve
        gone       => missing, wait 2.5..5
        pass 50
        elapsed    => resolve
        gone       => wait 2.5..5
    " }

    a_kind_that_never_was_there_has_nothing_to_lose { "
        start      => resolving, resolve
        gone       => missing, wait 0.5..1
        pass 300
        elapsed    => resolve
        gone       => wait 1..2
    " }

    a_denied_list_is_tried_again_slowly { "
        start      => resolving, resolve
        resolved   => listing, stream
        status 403 => denied, wait 30..33
        elapsed    => listing, stream
        status 401 => unauthenticated, wait 30..33
        elapsed    => listing, stream
        opened     => begin
    " }

    a_denied_watch_is_tried_again_slowly_and_goes_on { STREAMED, "
        pass 6
        ended      => watch 7
        status 403 => denied, wait 30..33
        elapsed    => list 1
        page 7     => watch 7
        status 403 => wait 30..33
        elapsed    => list 1
        page 7     => watch 7
        opened     => watching
    " }

    a_denied_discovery_is_tried_again_slowly { "
        start      => resolving, resolve
        status 403 => denied, wait 30..33
        elapsed    => resolve
        cut        => waiting, wait 0.8..1.6
        elapsed    => resolve
        resolved   => listing, stream
    " }

    a_kind_that_is_not_served_is_looked_for_every_few_seconds { "
        start    => resolving, resolve
        missing  => missing, wait 0.5..1
        elapsed  => resolve
        missing  => wait 1..2
        elapsed  => resolve
        status 404 => missing, wait 2..4
        elapsed  => resolve
        missing  => missing, wait 2.5..5
        elapsed  => resolve
        missing  => wait 2.5..5
        elapsed  => resolve
        resolved => listing, stream
    " }

    a_kind_that_vanishes_from_list_or_watch_is_looked_for { "
        start          => resolving, resolve
        resolved       => listing, stream
        opened         => begin
        missing        => abort, missing, wait 0.5..1
        elapsed        => resolve
        resolved       => listing, stream
        status 400     => list 500
        page 7 a@5 + T => begin, upsert a@5, list 500 from T
        status 404     => abort, missing, wait 1..2
        elapsed        => resolve
        resolved       => listing, stream
        opened         => begin
        complete 9     => finish 9, synced, watching
        error 404      => missing, wait 2..4
        elapsed        => resolve
        resolved       => relist reappeared, listing, stream
        missing        => missing, wait 2.5..5
        elapsed        => resolve
        resolved       => relist reappeared, waiting, wait 1.6..3.2
        elapsed        => listing, stream
    " }

    an_object_that_cannot_be_read_is_skipped { PAGED, "
        line {\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"a\"}}} => skipped
        line {\"type\":\"DELETED\",\"object\":5} => skipped
        modified b@9 => upsert b@9
        error 410    => relist expired, resolving, resolve
        resolved     => listing, list 500
        body {\"metadata\":{\"resourceVersion\":\"10\"},\"items\":[7,{\"metadata\":{\"name\":\"a\"}}]} => begin, skipped, skipped, finish 10, watch 10
    " }

    a_line_that_is_no_watch_line_ends_the_watch { STREAMED, "
        line <html>          => waiting, wait 0.8..1.6
        elapsed              => list 1
        page 7               => watch 7
        opened               => watching
        line {\"type\":\"X\"} => waiting, wait 1.6..3.2
        elapsed              => list 1
        page 7               => watch 7
    " }

    a_line_that_is_no_watch_line_ends_a_streaming_list { "
        start     => resolving, resolve
        resolved  => listing, stream
        opened    => begin
        line {}   => abort, waiting, wait 0.8..1.6
        elapsed   => listing, list 500
    " }

    invariant_4_a_list_whose_version_went_back_is_accepted_as_a_whole { PAGED, "
        bookmark 40  => covered 40
        error 410    => relist expired, resolving, resolve
        resolved     => listing, list 500
        page 20 a@18 => begin back, upsert a@18, finish 20, watch 20
        opened       => watching
        error 410    => relist expired, waiting, wait 1.6..3.2
        elapsed      => resolve
        resolved     => listing, list 500
        page 21      => begin, finish 21, watch 21
    " }

    invariant_4_a_restore_that_another_found_is_followed_whatever_the_version { STREAMED, "
        restored     => relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 90 a@3  => begin, upsert a@3, finish 90, watch 90
        opened       => watching
    " }

    invariant_4_a_restore_that_another_found_is_followed_before_a_watch_goes_on { PAGED, "
        cut          => waiting, wait 0.8..1.6
        restored     =>
        elapsed      => list 1
        page 90      => relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 90 a@3  => begin, upsert a@3, finish 90, watch 90
        restored     =>
        opened       => relist went_back, waiting, wait 1.6..3.2
    " }

    a_restore_means_nothing_to_who_has_listed_nothing { "
        start        => resolving, resolve
        restored     =>
        resolved     => listing, stream
        opened       => begin
        complete 7   => finish 7, synced, watching
    " }

    invariant_4_a_streaming_list_whose_version_went_back_is_repeated_by_pages { STREAMED, "
        bookmark 40  => covered 40
        error 410    => relist expired, resolving, resolve
        resolved     => listing, stream
        opened       => begin
        added a@18   => upsert a@18
        complete 20  => abort, relist went_back, waiting, wait 1.6..3.2
        elapsed      => resolve
        resolved     => listing, list 500
        page 20 a@18 => begin back, upsert a@18, finish 20, watch 20
    " }

    invariant_4_a_lost_watch_goes_on_only_if_the_server_did_not_go_back { STREAMED, "
        bookmark 40  => covered 40
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        cut          => waiting, wait 1.6..3.2
        elapsed      => list 1
        status 404   => missing, wait 0.5..1
        elapsed      => resolve
        resolved     => relist reappeared, listing, stream
        opened       => begin
        complete 40  => finish 40, watching
        cut          => waiting, wait 3.2..6.4
        elapsed      => list 1
        page 40 a@5  => watch 40
        cut          => waiting, wait 6.4..12.8
        elapsed      => list 1
        page 39 a@5  => relist went_back, waiting, wait 1.6..3.2
        elapsed      => resolve
        resolved     => listing, list 500
        page 39 a@5  => begin back, upsert a@5, finish 39, watch 39
    " }

    a_kind_that_is_gone_when_its_list_is_begun_anew_is_looked_for { STREAMED, "
        error 410    => relist expired, resolving, resolve
        cut          => waiting, wait 0.8..1.6
        elapsed      => resolve
        missing      => missing, wait 0.5..1
        elapsed      => resolve
        resolved     => relist reappeared, waiting, wait 1.6..3.2
        elapsed      => listing, stream
    " }

    invariant_4_a_silent_watch_is_followed_by_a_look_at_the_version { STREAMED, "
        bookmark 40  => covered 40
        pass 6
        ended        => watch 40
        opened       =>
        pass 120
        ended        => list 1
        page 40 a@18 => watch 40
        opened       =>
        pass 300
        cut          => waiting, wait 0.8..1.6
        elapsed      => list 1
        body []      => waiting, wait 1.6..3.2
        elapsed      => list 1
        page x       => waiting, wait 3.2..6.4
        elapsed      => list 1
        status 403   => denied, wait 30..33
        elapsed      => list 1
        page 20 a@18 => relist went_back, resolving, resolve
        resolved     => listing, list 500
        page 20 a@18 => begin back, upsert a@18, finish 20, watch 20
    " }

    a_watch_that_is_heard_is_not_suspected { STREAMED, "
        pass 6
        ended       => watch 7
        opened      =>
        bookmark 7  => covered 7
        pass 600
        ended       => watch 7
        opened      =>
        bookmark 3  =>
        pass 600
        ended       => list 1
    " }

    what_answers_no_question_changes_nothing { "
        resolved    =>
        elapsed     =>
        start       => resolving, resolve
        start       =>
        opened      =>
        added a@5   =>
        resolved    => listing, stream
        added a@5   =>
        page 7 a@5  =>
        opened      => begin
        opened      =>
        complete 7  => finish 7, synced, watching
        page 7 a@5  =>
        cut         => waiting, wait 0.8..1.6
        ended       =>
        modified a@8 =>
        cut         =>
        elapsed     => list 1
        page 7      => watch 7
        elapsed     =>
    " }
}

#[test]
fn pages_are_used_from_the_start_where_streaming_is_off() {
    let mut reflector = Reflector::new(Config { streaming: false, page_size: 2, ..config() });
    let mut effects = Vec::new();
    for input in [Input::Start, Input::Resolved] {
        reflector.step(Duration::ZERO, input, &mut effects);
    }
    let list = Effect::List { limit: 2, continue_token: None, resource_version: None };
    assert_eq!(effects.last(), Some(&list));
}

#[test]
fn items_of_built_in_kinds_get_their_kind() {
    let mut effects = play(&["
        start      => resolving, resolve
        resolved   => listing, stream
        status 400 => list 500
        page 7 a@5 => begin, upsert a@5, finish 7, synced, watch 7
    "]);
    let Some(Effect::Upsert(object)) = effects.drain(..).find(|effect| matches!(effect, Effect::Upsert(_))) else {
        panic!("an object came")
    };
    assert!(object.json().starts_with(r#"{"apiVersion":"v1","kind":"ConfigMap","#), "{}", object.json());
}

#[test]
fn metadata_alone_is_kept_in_lists_and_watches_of_either_form() {
    const METADATA: &str = r#""metadata":{"name":"a","uid":"u","resourceVersion":"5"}"#;
    const PARTIAL: &str = r#""kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1""#;
    let mut reflector = Reflector::new(Config { streaming: false, keep: Keep::new(true, []).unwrap(), ..config() });
    let mut effects = Vec::new();
    let page = |items: &str| {
        format!(r#"{{"kind":"PartialObjectMetadataList","metadata":{{"resourceVersion":"7"}},"items":[{items}]}}"#)
    };
    let pages = page(&format!(r#"{{{PARTIAL},{METADATA}}},{{{METADATA},"data":{{"a":"b"}}}}"#));
    let event = format!(r#"{{"type":"MODIFIED","object":{{{PARTIAL},{METADATA}}}}}"#);
    let whole =
        format!(r#"{{"type":"DELETED","object":{{"kind":"ConfigMap","apiVersion":"v1",{METADATA},"data":{{}}}}}}"#);
    let inputs = [
        Input::Start,
        Input::Resolved,
        Input::Page(pages.as_bytes()),
        Input::Opened,
        Input::Line(event.as_bytes()),
        Input::Line(whole.as_bytes()),
    ];
    for input in inputs {
        reflector.step(Duration::ZERO, input, &mut effects);
    }
    let objects = effects.iter().filter_map(|effect| match effect {
        Effect::Upsert(object) | Effect::Remove(object) => Some(object.json()),
        _ => None,
    });
    let kept = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap",{METADATA}}}"#);
    assert_eq!(objects.collect::<Vec<_>>(), [&*kept; 4]);
}

#[test]
fn a_skipped_object_is_named_and_not_shown() {
    let mut effects = play(&[
        STREAMED,
        r#"line {"type":"ADDED","object":{"metadata":{"namespace":"n","name":"s"},"data":{"password":"c2VjcmV0"}}} => skipped"#,
    ]);
    let Some(Effect::Skipped { key, why }) = effects.pop() else { panic!("the object cannot be read") };
    assert_eq!(key, Some(Key::new(Some("n"), "s")));
    assert!(why.starts_with("cannot read v1 ConfigMap n/s: "), "{why}");
    assert!(!why.contains("c2VjcmV0"), "{why}");
}

#[test]
fn failures_are_told_in_words() {
    let reason = |line: &str| {
        let effects = play(&[STREAMED, line]);
        effects.into_iter().rev().find_map(|effect| match effect {
            Effect::State(
                State::Waiting { reason, .. }
                | State::Unauthenticated(reason)
                | State::Denied(reason)
                | State::Missing(reason),
            ) => Some(reason),
            _ => None,
        })
    };
    assert_eq!(reason("cut => waiting, wait 0.8..1.6").unwrap(), "connection reset");
    assert_eq!(
        reason("error 503 => waiting, wait 0.8..1.6").unwrap(),
        "the server answered 503 Because: status of the test"
    );
    assert_eq!(
        reason("status 403 => denied, wait 30..33").unwrap(),
        "the server answered 403 Because: status of the test"
    );
    let status = Status { code: 429, message: "429 Too Many Requests: later".to_owned(), ..Status::default() };
    assert_eq!(super::answer::describe(&status), "the server answered 429 Too Many Requests: later");
    assert_eq!(reason("missing => missing, wait 0.5..1").unwrap(), "no such kind");
    assert_eq!(reason("ended => waiting, wait 0.8..1.6").unwrap(), "the watch ended as soon as it began");
    let long = format!("status 403 {} => denied, wait 30..33", "ä".repeat(10_000));
    assert_eq!(reason(&long).unwrap().chars().count(), 501);
}

#[test]
fn failures_are_counted_by_what_one_can_do_about_them() {
    let status = |code| Failure::Status(Status { code, ..Status::default() });
    let codes = [400, 401, 403, 404, 410, 422, 429, 500, 503, 504, u16::MAX];
    assert_eq!(
        codes.map(|code| status(code).as_str()),
        [
            "refused",
            "unauthenticated",
            "denied",
            "missing",
            "expired",
            "refused",
            "throttled",
            "server_error",
            "server_error",
            "server_error",
            "server_error",
        ]
    );
    assert_eq!(Failure::Transport("reset".to_owned()).as_str(), "unreachable");
    assert_eq!(Failure::Gone("gone".to_owned()).as_str(), "missing");
}

#[test]
fn watches_of_different_seeds_end_at_different_times() {
    let timeouts = (0..200).map(|seed| {
        let mut reflector = Reflector::new(Config { seed, ..config() });
        let mut effects = Vec::new();
        for input in [Input::Start, Input::Resolved] {
            reflector.step(Duration::ZERO, input, &mut effects);
        }
        let Some(Effect::Watch { timeout, .. }) = effects.pop() else { panic!("it streams") };
        timeout.as_secs()
    });
    let minutes: std::collections::BTreeSet<_> = timeouts.map(|seconds| seconds / 60).collect();
    assert_eq!(minutes.into_iter().collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
}
