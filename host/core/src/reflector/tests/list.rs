//! Lists: streaming, by pages, and whole.

use super::*;

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
        pass 600
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
