//! A handle on one MyApple and its children.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::wait::eventually;

/// The kind that the example plugin serves.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("stable.example.com", "v1", "MyApple"))
}

/// One MyApple, by name, whether it exists or not.
#[derive(Clone, Debug)]
pub struct Apple {
    /// Its name.
    pub name: String,
    /// The MyApples of its namespace.
    pub apples: Api<DynamicObject>,
    /// The ConfigMaps of its namespace.
    pub maps: Api<ConfigMap>,
}

impl Apple {
    /// Creates the handle. Sends no request.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            apples: Api::namespaced_with(client.clone(), namespace, &resource()),
            maps: Api::namespaced(client, namespace),
        }
    }

    /// Creates a small green MyApple, once the server serves the kind.
    ///
    /// # Errors
    /// The server rejects it, or does not serve the kind in time.
    pub async fn create(&self, quantity: u32) -> Result<&Self> {
        self.create_with("green", quantity).await
    }

    /// As [`Apple::create`], in another color.
    ///
    /// # Errors
    /// As [`Apple::create`].
    pub async fn create_with(&self, color: &str, quantity: u32) -> Result<&Self> {
        let spec = json!({"spec": {"color": color, "size": "small", "quantity": quantity}});
        let object = DynamicObject::new(&self.name, &resource()).data(spec);
        let created = eventually("the API server serves MyApples", async || {
            match self.apples.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Err(anyhow::Error::new(*status)),
                other => Ok(other),
            }
        });
        created.await?.with_context(|| format!("cannot create the MyApple {}", self.name))?;
        Ok(self)
    }

    /// Gets the MyApple from the server.
    ///
    /// # Errors
    /// It does not exist, or the server does not answer.
    pub async fn get(&self) -> Result<DynamicObject> {
        self.apples.get(&self.name).await.with_context(|| format!("cannot get the MyApple {}", self.name))
    }

    /// Changes members of the spec.
    ///
    /// # Errors
    /// The server rejects the change.
    pub async fn set(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        answered(async || self.apples.patch(&self.name, &PatchParams::default(), &patch).await)
            .await?
            .with_context(|| format!("cannot change the MyApple {}", self.name))?;
        Ok(())
    }

    /// Changes the number of children in the spec.
    ///
    /// # Errors
    /// The server rejects the change.
    pub async fn scale(&self, quantity: u32) -> Result<()> {
        self.set(json!({ "quantity": quantity })).await
    }

    /// Deletes the MyApple.
    ///
    /// # Errors
    /// The server rejects the request.
    pub async fn delete(&self) -> Result<()> {
        let deleted = self.apples.delete(&self.name, &DeleteParams::default()).await;
        deleted.with_context(|| format!("cannot delete the MyApple {}", self.name))?;
        Ok(())
    }

    /// Returns a child's name. Children are counted from 0.
    pub fn child(&self, index: u32) -> String {
        format!("{}-{index}", self.name)
    }

    /// Merges `data` into a child's data, as another writer.
    ///
    /// # Errors
    /// The server rejects the patch.
    pub async fn edit_child(&self, index: u32, data: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "data": data }));
        let child = self.child(index);
        answered(async || self.maps.patch(&child, &PatchParams::default(), &patch).await)
            .await?
            .with_context(|| format!("cannot edit the ConfigMap {child}"))?;
        Ok(())
    }

    /// Returns the ConfigMaps that it controls, sorted by name.
    ///
    /// # Errors
    /// The MyApple does not exist, or the server does not answer.
    pub async fn children(&self) -> Result<Vec<ConfigMap>> {
        let uid = self.get().await?.uid().context("the server gave it no uid")?;
        let all = self.maps.list(&ListParams::default()).await.context("cannot list the ConfigMaps")?;
        Ok(all
            .into_iter()
            .filter(|map| map.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid))
            .collect())
    }

    /// Waits until the cluster matches the spec: exactly its children exist with the right content, its status counts
    /// them, and the condition Ready is true for its present generation.
    ///
    /// # Errors
    /// The cluster does not match in time. The error says what differs.
    pub async fn settles(&self) -> Result<()> {
        eventually(&format!("the MyApple {} has what it asks for", self.name), async || self.settled().await).await
    }

    async fn settled(&self) -> Result<()> {
        let object = self.get().await?;
        let children = self.children().await?;
        has_what_it_asks_for(&object, &children.iter().collect::<Vec<_>>())
    }

    /// Waits until its status satisfies `wanted`, and returns the status.
    ///
    /// # Errors
    /// The status does not in time.
    pub async fn status_is(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(&format!("the status of the MyApple {} is {what}", self.name), async || {
            let status = self.get().await?.data["status"].take();
            ensure!(wanted(&status), "its status is {status}");
            Ok(status)
        })
        .await
    }

    /// Waits until the condition Ready is False with a message that contains all of `parts`, and returns the condition.
    ///
    /// # Errors
    /// The condition does not in time.
    pub async fn is_not_ready_because(&self, parts: &[&str]) -> Result<Value> {
        eventually(&format!("the MyApple {} is not ready because of {parts:?}", self.name), async || {
            let object = self.get().await?;
            let ready = condition(&object, "Ready").with_context(|| format!("no condition in {}", object.data))?;
            ensure!(ready["status"] == "False", "its condition is {ready}");
            let message = ready["message"].as_str().unwrap_or_default();
            ensure!(parts.iter().all(|part| message.contains(part)), "its message is: {message}");
            Ok(ready.clone())
        })
        .await
    }
}

/// Checks that a MyApple and its children, sorted by name, are as [`Apple::settles`] waits for.
pub(crate) fn has_what_it_asks_for(object: &DynamicObject, children: &[&ConfigMap]) -> Result<()> {
    let spec = &object.data["spec"];
    let quantity = spec["quantity"].as_u64().context("no quantity")?;
    let wanted = BTreeMap::from(
        ["color", "size"].map(|member| (member.to_owned(), spec[member].as_str().unwrap_or_default().to_owned())),
    );
    let mut expected: Vec<String> = (0..quantity).map(|index| format!("{}-{index}", object.name_any())).collect();
    expected.sort();
    let names: Vec<String> = children.iter().map(|child| child.name_any()).collect();
    ensure!(names == expected, "its children are {names:?}");
    for child in children {
        let data = child.data.clone().unwrap_or_default();
        ensure!(data == wanted, "the child {} has {data:?}", child.name_any());
    }
    let status = &object.data["status"];
    ensure!(status["available"] == quantity, "its status is {status}");
    let ready = condition(object, "Ready").with_context(|| format!("no condition Ready in {status}"))?;
    ensure!(ready["status"] == "True", "its condition is {ready}");
    ensure!(ready["observedGeneration"] == json!(object.metadata.generation), "its condition is {ready}");
    Ok(())
}

/// Retries a request that may be sent twice. Right after a restart the client's open connection may be dead, and the
/// server may be overloaded or without etcd.
async fn answered<T>(send: impl AsyncFn() -> kube::Result<T>) -> Result<kube::Result<T>> {
    eventually("the API server answers", async || match send().await {
        Err(kube::Error::Api(status)) if matches!(status.code, 429 | 500..) => Err(anyhow::Error::new(*status)),
        Err(unanswered) if !matches!(unanswered, kube::Error::Api(_)) => Err(anyhow::Error::new(unanswered)),
        answer => Ok(answer),
    })
    .await
}

/// One of the conditions in an object's status.
pub fn condition<'a>(object: &'a DynamicObject, of_type: &str) -> Option<&'a Value> {
    object.data["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == of_type)
}
