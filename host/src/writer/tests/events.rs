//! Events: their writing, counting and dropping.

use super::*;

#[tokio::test]
async fn a_repeated_event_is_counted_and_too_many_are_dropped() {
    let api = Api::start().await;
    let events = Events::start(api.cluster.clone(), Acting::new(true), Arc::default(), "test", &Handle::current());
    let mut node = config_map("node-1");
    node["apiVersion"] = "v1".into();
    node["kind"] = "Node".into();
    node["metadata"] = json!({ "name": "node-1", "uid": "u", "resourceVersion": "7" });
    let node = parsed(&node);
    for _ in 0..30 {
        events.record(host(), &node, Level::Normal, "Looked", "at it");
    }
    settled(&events, [1, 24, 5, 0]).await;
    // Events about an object without a namespace are in `default`.
    let body = api.cluster.get_path("/api/v1/namespaces/default/events").await.expect("Events can be listed");
    let list: serde_json::Value = serde_json::from_slice(&body).expect("a list");
    let told = |event: &serde_json::Value| {
        ["type", "reason", "message", "count"].map(|member| event[member].to_string()).join(" ")
    };
    let items = list["items"].as_array().cloned().unwrap_or_default();
    assert_eq!(items.iter().map(told).collect::<Vec<_>>(), [r#""Normal" "Looked" "at it" 25"#]);
    assert_eq!(items[0]["involvedObject"]["namespace"], json!(null));
}

#[tokio::test]
async fn a_plugins_storm_of_events_leaves_room_for_those_of_the_host_and_of_others() {
    let api = Api::start().await;
    let counted = Arc::<PluginEvents>::default();
    counted.begin("apples");
    counted.begin("pears");
    let acting = Acting::new(true);
    let events = Events::start(api.cluster.clone(), acting, counted.clone(), "test", &Handle::current());
    let mut object = config_map("a");
    object["metadata"]["uid"] = json!("1");
    object["metadata"]["resourceVersion"] = json!("1");
    let object = parsed(&object);
    let pears = Source::Plugin(PluginName::new("pears").expect("a name"));
    for _ in 0..30 {
        events.record(Source::Plugin(plugin()), &object, Level::Normal, "Looked", "at it");
    }
    events.record(pears, &object, Level::Warning, "Looked", "at it");
    events.record(host(), &object, Level::Warning, "Looked", "at it");
    settled(&events, [1, 0, 0, 0]).await;
    let counts =
        |plugin: &str| counted.get(plugin).map(|counts| counts.iter().map(|(_, count)| count).collect::<Vec<_>>());
    soon("all are written", async {
        while counts("apples") != Some(vec![1, 24, 5, 0, 0]) || counts("pears") != Some(vec![1, 0, 0, 0, 0]) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let body = api.cluster.get_path("/api/v1/namespaces/default/events").await.expect("Events can be listed");
    let list: serde_json::Value = serde_json::from_slice(&body).expect("a list");
    let mut from: Vec<_> = list["items"].as_array().into_iter().flatten().collect();
    from.sort_by_key(|event| event["reportingComponent"].as_str());
    let shown = |event: &serde_json::Value| {
        [&event["source"]["component"], &event["reportingComponent"], &event["type"]]
            .map(|text| text.as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(
        from.into_iter().map(shown).collect::<Vec<_>>(),
        [
            ["pilothouse", "pilothouse", "Warning"],
            ["pilothouse/apples", "pilothouse/apples", "Normal"],
            ["pilothouse/pears", "pilothouse/pears", "Warning"],
        ]
    );
}

#[tokio::test]
async fn an_event_that_cannot_be_written_costs_itself_alone() {
    let api = Api::start().await;
    let events = Events::start(api.cluster.clone(), Acting::new(true), Arc::default(), "test", &Handle::current());
    let mut elsewhere = config_map("a");
    elsewhere["metadata"] = json!({ "namespace": "nowhere", "name": "a", "uid": "u", "resourceVersion": "7" });
    events.record(host(), &parsed(&elsewhere), Level::Warning, "Failed", "no");
    settled(&events, [0, 0, 0, 1]).await;
    elsewhere["metadata"]["namespace"] = "default".into();
    let long = "é".repeat(2000);
    events.record(host(), &parsed(&elsewhere), Level::Warning, "Failed", &long);
    settled(&events, [1, 0, 0, 1]).await;
    // An Event that was deleted is created again.
    let body = api.cluster.get_path("/api/v1/namespaces/default/events").await.expect("Events can be listed");
    let list: serde_json::Value = serde_json::from_slice(&body).expect("a list");
    assert!(
        list["items"][0]["message"].as_str().is_some_and(|message| message.len() == 1023 && message.ends_with('…'))
    );
    let name = list["items"][0]["metadata"]["name"].as_str().expect("it has a name");
    api.delete(&TypeMeta::new("v1", "Event"), &Key::new(Some("default"), name)).await;
    events.record(host(), &parsed(&elsewhere), Level::Warning, "Failed", &long);
    settled(&events, [1, 1, 0, 1]).await;
    let body = api.cluster.get_path("/api/v1/namespaces/default/events").await.expect("Events can be listed");
    let list: serde_json::Value = serde_json::from_slice(&body).expect("a list");
    assert_eq!(list["items"][0]["count"], json!(2));
}
