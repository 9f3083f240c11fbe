//! Requests that a plugin makes by itself.

use super::*;

#[tokio::test]
async fn invariant_3_a_delete_without_preconditions_is_in_the_cache_at_once() {
    let api = Api::start().await;
    api.create(config_map("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let view = view(&informers, "").await;
    let key = Key::new(Some("default"), "a");
    assert!(view.get(&config_maps(), &key).is_some());
    // Only this future runs until the answer is there, so the watch cannot bring the event first.
    writer(&api, &informers)
        .delete_object(&config_maps(), &key, DeleteOptions::default())
        .await
        .expect("it is deleted");
    assert!(view.get(&config_maps(), &key).is_none());
}

#[test]
fn the_status_of_a_delete_has_the_uid_of_the_deleted_object() {
    let status = json!({ "kind": "Status", "status": "Success", "details": { "name": "a", "uid": "1-2" } });
    assert_eq!(
        crate::writer::send::deleted_uid(status.to_string().as_bytes()).map(|uid| uid.to_string()).as_deref(),
        Some("1-2")
    );
    for other in ["", "[]", r#"{"details":null}"#, r#"{"details":{"uid":""}}"#, r#"{"details":{"uid":7}}"#] {
        assert!(crate::writer::send::deleted_uid(other.as_bytes()).is_none(), "{other}");
    }
}

#[tokio::test]
async fn invariant_7_what_is_not_granted_is_not_even_looked_for() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    let nowhere = TypeMeta::new("nowhere.example.com/v1", "Nothing");
    for namespace in [None, Some("default")] {
        let denied = writer.get(&nowhere, &Key::new(namespace, "a"), None).await;
        assert!(matches!(denied, Err(ClientError::Denied(_))), "{denied:?}");
    }
    let missing = writer.get(&config_maps(), &Key::new(Some("default"), "a"), None).await;
    assert!(matches!(missing, Err(ClientError::Request(error)) if error.is_not_found()));
}

#[tokio::test]
async fn a_name_cannot_lead_to_a_subresource_or_a_collection() {
    let api = Api::start().await;
    api.create(config_map("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    for name in ["", "a/status", ".."] {
        let refused =
            writer.delete_object(&config_maps(), &Key::new(Some("default"), name), DeleteOptions::default()).await;
        assert!(matches!(refused, Err(ClientError::Request(cluster::Error::Name(_)))), "{refused:?}");
    }
    assert!(writer.get(&config_maps(), &Key::new(Some("default"), "a"), None).await.is_ok());
}

#[tokio::test]
async fn requests_of_a_plugin_that_are_too_long_or_lack_a_name_are_refused_unsent() {
    let api = Api::start().await;
    let writer = writer(&api, &Informers::new(api.cluster.clone(), Handle::current()));
    let invalid = async |object: &str| match writer.create(object).await {
        Err(ClientError::Invalid(why)) => why,
        other => panic!("{object:.100} is taken: {other:?}"),
    };
    let long = |bytes: usize| format!("{{\"data\":\"{}\"}}", "x".repeat(bytes - 11));
    let too_long = |what: &str| format!("{what} has 3145729 bytes, and an API server takes at most 3145728");
    assert_eq!(invalid(&long(MAX_OBJECT + 1)).await, too_long("the object"));
    for (object, why) in [
        (&*long(MAX_OBJECT), "the object has no apiVersion"),
        (r#"{"apiVersion":1,"kind":"ConfigMap","metadata":{"name":"a"}}"#, "the object has no apiVersion"),
        (r#"{"apiVersion":"v1","kind":"","metadata":{"name":"a"}}"#, "the object has no kind"),
        (r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":["a"]}"#, "the object has no metadata.name"),
        (
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":{"name":"a"}}}"#,
            "the object has no metadata.name",
        ),
    ] {
        assert_eq!(invalid(object).await, why);
    }
    for object in ["", "[]", "{", "null", r#"["v1","ConfigMap",{"name":"a"}]"#] {
        assert!(invalid(object).await.starts_with("the object is not a JSON object: "), "{object}");
    }
    let patched =
        writer.patch(&config_maps(), &Key::new(Some("default"), "a"), Patch::Merge, long(MAX_OBJECT + 1), None).await;
    assert!(matches!(patched, Err(ClientError::Invalid(why)) if why == too_long("the patch")));
    // The name may come after a large member.
    let object = format!(
        r#"{{"data":{{"x":"{}"}},"metadata":{{"name":"far","namespace":"default"}},"kind":"ConfigMap","apiVersion":"v1"}}"#,
        "x".repeat(512 << 10)
    );
    assert_eq!(&*writer.create(&object).await.expect("it is created").key().name, "far");
}

#[tokio::test]
async fn a_review_that_is_not_stored_is_answered() {
    let api = Api::start().await;
    let writer = writer(&api, &Informers::new(api.cluster.clone(), Handle::current()));
    let of = TypeMeta::new("authorization.k8s.io/v1", "SelfSubjectAccessReview");
    let grants = Permission {
        of: of.clone(),
        subresource: None,
        verbs: [Verb::Create].into_iter().collect(),
        namespaces: Vec::new(),
        names: Vec::new(),
    };
    writer.grants.store(Arc::new(Grants::all_asked(&[grants])));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": { "verb": "get", "resource": "configmaps" } },
    });
    for metadata in [json!(null), json!({}), json!({ "name": "a" })] {
        let mut review = review.clone();
        if !metadata.is_null() {
            review["metadata"] = metadata;
        }
        let answer = writer.create(&review.to_string()).await.expect("it is answered");
        let answer: serde_json::Value = serde_json::from_str(&answer.json()).expect("it is JSON");
        assert_eq!((&answer["kind"], &answer["status"]["allowed"]), (&json!(of.kind.as_ref()), &json!(true)));
    }
}

#[tokio::test]
async fn text_is_stored_as_the_plugin_wrote_it_whatever_verb_carries_it() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    let object = |name: &str, text: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"default"}},"data":{{"text":"{text}"}}}}"#
        )
    };
    // Unescaped, and as Python escapes it.
    let raw = "x\u{85}y \u{2028} \u{7f}\u{90}\u{feff}\u{ffff}😀/";
    let escaped = r"x\u0085y \u2028 \u007f\u0090\ufeff\uffff\ud83d\ude00\/";
    for (at, text) in [raw, escaped].into_iter().enumerate() {
        let name = |verb: &str| format!("{verb}-{at}");
        let key = |verb: &str| Key::new(Some("default"), &name(verb));
        writer.apply_object(&object(&name("apply"), text), None, true).await.expect("it is applied");
        writer.create(&object(&name("create"), text)).await.expect("it is created");
        for verb in ["update", "patch"] {
            api.create(config_map(&name(verb))).await;
        }
        writer.update(&object(&name("update"), text), None).await.expect("it is updated");
        let patch = format!(r#"{{"data":{{"text":"{text}"}}}}"#);
        writer.patch(&config_maps(), &key("patch"), Patch::Merge, patch, None).await.expect("it is patched");
        for verb in ["apply", "create", "update", "patch"] {
            let live = api.cluster.get(&config_maps(), Some("default"), &name(verb)).await.expect("it is there");
            let live: serde_json::Value = serde_json::from_slice(&live).expect("an object is JSON");
            assert_eq!(live["data"]["text"], raw, "{verb}");
        }
    }
    let refused = writer.apply_object(&object("alone", r"\ud83d"), None, true).await;
    assert!(matches!(&refused, Err(ClientError::Request(cluster::Error::Body(_)))), "{refused:?}");
}

fn list_query(limit: u32) -> ListQuery {
    let (labels, fields) = (String::new(), String::new());
    ListQuery { of: config_maps(), namespace: Some("default".into()), labels, fields, limit, after: None }
}

#[tokio::test]
async fn a_page_that_is_too_large_is_asked_for_again_with_fewer_objects() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    // Two of them are more than a page.
    for number in 0..9 {
        let mut map = config_map(&format!("m-{number}"));
        map["data"] = json!({ "text": "x".repeat(700 << 10) });
        api.create(map).await;
    }
    let before = api.requests("LIST", "configmaps").await;
    let (mut query, mut names, mut pages) = (list_query(0), Vec::new(), 0);
    loop {
        let page = writer.list(&query).await.expect("a page");
        names.extend(page.items.iter().map(|object| object.key().name.to_string()));
        pages += 1;
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    names.retain(|name| name.starts_with("m-"));
    assert_eq!(names, (0..9).map(|number| format!("m-{number}")).collect::<Vec<_>>());
    // 500, 62 and 7 objects were too large. The next pages begin with what fitted.
    assert_eq!(api.requests("LIST", "configmaps").await - before, pages + 3);
    let wrong = writer.list(&ListQuery { after: Some("anything".into()), ..list_query(0) }).await;
    assert!(matches!(wrong, Err(ClientError::Invalid(why)) if why == "after: it is not the `next` of a page"));
}

#[tokio::test]
async fn lists_evictions_and_logs_that_are_not_granted_are_not_sent() {
    let (api, sent) = Api::overheard().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    let pod = Key::new(Some("default"), "a");
    let secrets = ListQuery { of: TypeMeta::new("v1", "Secret"), ..list_query(0) };
    let none = || Preconditions { uid: None, resource_version: None };
    let lines = LogQuery { container: None, previous: false, since_seconds: None, tail_lines: None, timestamps: false };
    let denied = [
        writer.list(&secrets).await.map(drop),
        writer.evict(&pod, None, none()).await,
        writer.logs(&pod, &lines).await.map(drop),
        writer.get(&deployments(), &pod, Some(Subresource::Scale)).await.map(drop),
    ];
    assert!(denied.iter().all(|answer| matches!(answer, Err(ClientError::Denied(_)))), "{denied:?}");
    assert!(sent.lock().is_empty(), "something was sent");
    let other = writer.get(&deployments(), &pod, Some(Subresource::Log)).await;
    assert!(matches!(other, Err(ClientError::Invalid(_))), "{other:?}");
}
