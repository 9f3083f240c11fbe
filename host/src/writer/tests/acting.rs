//! What is refused while this process may not act: writes, CustomResourceDefinitions and Events.

use super::*;
use crate::writer::{Closed, CrdError};

#[tokio::test]
async fn nothing_is_written_while_this_process_may_not_act() {
    let api = Api::start().await;
    api.create(config_map("there")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let acting = Acting::new(false);
    let writer = acting_writer(&api, &informers, acting.clone());
    let view = View::new([lease(&informers, InformerKey::all(config_maps())).await]);
    let (object, owns) = (parent(), [config_maps()]);
    let owner = Owner { object: &object, owns: &owns };
    let child = || vec![Child { object: config_map("c").to_string(), adopt: false, replace: false }];
    let (there, made) = (Key::new(Some("default"), "there"), config_map("made").to_string());

    let report = writer.children(&owner, &view, child()).await;
    let refused = "not written: this process may not act now; it is tried again when it may";
    assert_eq!((report.written, report.problem().as_deref()), (0, Some(refused)));
    let merge = r#"{"data":{}}"#.to_owned();
    let refusals = [
        writer.create(&made).await.err(),
        writer.apply_object(&made, None, false).await.err(),
        writer.update(&config_map("there").to_string(), None).await.err(),
        writer.patch(&config_maps(), &there, Patch::Merge, merge, None).await.err(),
        writer.delete_object(&config_maps(), &there, DeleteOptions::default()).await.err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Some(ClientError::Closed(Closed::NotActing))), "{refusal:?}");
    }
    acting.set(true);
    let report = writer.children(&owner, &view, child()).await;
    assert_eq!((report.written, report.problem()), (1, None));
    // It was one of the test's, and one of the writer's after that.
    let count = async |verb| api.requests(verb, "configmaps").await;
    assert_eq!([count("POST").await, count("APPLY").await, count("PUT").await, count("PATCH").await], [1, 1, 0, 0]);
    assert_eq!(count("DELETE").await, 0);
}

#[tokio::test]
async fn no_definition_is_installed_while_this_process_may_not_act() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let acting = Acting::new(false);
    let writer = acting_writer(&api, &informers, acting.clone());
    let definition = [crate::testing::apples("Namespaced", &[("v1", true)]).to_string()];
    let refused = writer.install(&definition, None).await;
    let is_closed = matches!(&refused, Err(CrdError::Install { source: Error::Closed(Closed::NotActing), .. }));
    assert!(is_closed, "{refused:?}");
    acting.set(true);
    soon("it is installed", writer.install(&definition, None)).await.expect("it may be");
}

#[tokio::test]
async fn an_event_is_dropped_while_this_process_may_not_act() {
    let api = Api::start().await;
    let acting = Acting::new(false);
    let events = Events::start(api.cluster.clone(), acting.clone(), Arc::default(), "test", &Handle::current());
    let mut node = config_map("node-1");
    node["metadata"] = json!({ "namespace": "default", "name": "a", "uid": "u", "resourceVersion": "7" });
    let node = parsed(&node);
    events.record(host(), &node, Level::Normal, "Looked", "at it");
    settled(&events, [0, 0, 1, 0]).await;
    assert_eq!(api.requests("POST", "events").await, 0);
    acting.set(true);
    events.record(host(), &node, Level::Normal, "Looked", "at it");
    settled(&events, [1, 0, 1, 0]).await;
}
