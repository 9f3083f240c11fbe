//! The harness on the real servers. Without their binaries these tests build them first, so they run only when asked
//! for: `cargo test -p pilothouse-real -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use pilothouse_real::{Cluster, Versions};
use serde_json::{from_value, json};

fn map(name: &str) -> ConfigMap {
    from_value(json!({"metadata": {"name": name}, "data": {"color": "green"}})).unwrap()
}

#[tokio::test]
#[ignore = "needs the real servers"]
async fn data_outlives_a_killed_apiserver_and_a_killed_etcd() {
    let cluster = Cluster::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client().await.unwrap());
    maps.create(&PostParams::default(), &map("kept")).await.unwrap();

    cluster.kill_apiserver();
    maps.get("kept").await.expect_err("nobody serves");

    cluster.restart_apiserver().await.unwrap();
    assert_eq!(maps.get("kept").await.unwrap().data, map("kept").data);

    cluster.restart_etcd().await.unwrap();
    let kept = loop {
        // The API server may need a moment to find the new etcd.
        if let Ok(kept) = maps.get("kept").await {
            break kept;
        }
    };
    assert_eq!(kept.data, map("kept").data);
}

#[tokio::test]
#[ignore = "needs the real servers"]
async fn dropped_cluster_leaves_neither_processes_nor_data() {
    let cluster = Cluster::start().await.unwrap();
    let folder = cluster.kubeconfig().parent().unwrap().to_owned();
    let client = cluster.client().await.unwrap();
    client.apiserver_version().await.unwrap();

    drop(cluster);
    assert!(!folder.exists());
    client.apiserver_version().await.expect_err("nobody serves");
}

#[tokio::test]
#[ignore = "needs the real servers"]
async fn nobody_is_known_and_may_do_nothing() {
    let cluster = Cluster::start().await.unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(cluster.kubeconfig_of_nobody()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(config.try_into().unwrap());
    match maps.list(&Default::default()).await {
        Err(kube::Error::Api(status)) => {
            assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
#[ignore = "needs the real servers"]
async fn restored_data_is_what_was_saved_and_its_versions_go_back_or_on() {
    let cluster = Cluster::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client().await.unwrap());
    let kept = maps.create(&PostParams::default(), &map("kept")).await.unwrap();
    cluster.save().await.unwrap();
    // More than what the servers write by themselves when they start.
    let mut newest = 0;
    for count in 0..300 {
        let lost = map(&format!("lost-{count}"));
        let lost = loop {
            // The API server may need a moment to find etcd again.
            if let Ok(lost) = maps.create(&PostParams::default(), &lost).await {
                break lost;
            }
        };
        newest = version(lost.metadata.resource_version);
    }

    for (versions, is_above) in [(Versions::Raised, true), (Versions::Back, false)] {
        cluster.restore(versions).await.unwrap();
        let client = cluster.client().await.unwrap();
        let maps = Api::<ConfigMap>::default_namespaced(client).list(&Default::default()).await.unwrap();
        assert_eq!(version(maps.metadata.resource_version) > newest, is_above);
        let names: Vec<_> = maps.items.iter().filter_map(|map| map.metadata.name.as_deref()).collect();
        assert_eq!(names, ["kept"], "after {versions:?}");
        assert_eq!(maps.items[0].metadata.resource_version, kept.metadata.resource_version);
    }
}

fn version(text: Option<String>) -> u64 {
    text.unwrap().parse().unwrap()
}
