//! Calls of a plugin's `admission` and `conversion`.

use std::{sync::Arc, time::Duration};

use pilothouse_core::manifest::WebhookType;

use super::{
    super::{
        super::contract::{
            error::CallError,
            export::{Bound, Export},
            imports::Imports,
            review::{Decision, Review, check_converted, check_object},
            text::{MAX_MESSAGE, shorten},
        },
        instances::{Instance, calling},
    },
    Revision,
};

impl Revision {
    /// Calls `validate`, or `mutate` for a mutating webhook. The object is the changed one, if `mutate` returned any.
    ///
    /// The inner error is the plugin's own message; the outer one means that the call failed. The deadline is `budget`,
    /// or a lower [`Limits::deadline`](super::super::super::Limits::deadline).
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    pub async fn review(
        &self,
        imports: Arc<dyn Imports>,
        of_type: WebhookType,
        review: &Review,
        budget: Duration,
    ) -> Result<Result<(Decision, Option<String>), String>, CallError> {
        self.check_exported(Export::Admission)?;
        let (budget, review) = (self.limits().lowered(budget), review.to_wit());
        let call = async |instance: &mut Instance| {
            let (Bound::Admission(bound), store) = instance.export(Export::Admission).await? else { unreachable!() };
            let admission = bound.pilothouse_plugin_admission();
            match of_type {
                WebhookType::Validating => {
                    let answer = admission.call_validate(store, &self.config, &review).await.map_err(calling)?;
                    Ok(answer.map(|decision| (decision, None)))
                }
                WebhookType::Mutating => admission.call_mutate(store, &self.config, &review).await.map_err(calling),
            }
        };
        let read = |answer: Result<(_, Option<String>), String>| match answer {
            Ok((decision, object)) => {
                object.as_deref().map_or(Ok(()), |object| check_object(object, "the changed object"))?;
                Ok(Ok((Decision::from_wit(decision)?, object)))
            }
            Err(message) => Ok(Err(shorten(message, MAX_MESSAGE))),
        };
        self.instances.call(Some(imports), budget, call, read).await
    }

    /// Calls `convert`, which may call no import but `host`. Returns as many objects as it got.
    ///
    /// The inner error is the plugin's own message; the outer one means that the call failed.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with time.
    pub async fn convert(
        &self,
        api_version: &str,
        objects: &[String],
        budget: Duration,
    ) -> Result<Result<Vec<String>, String>, CallError> {
        self.check_exported(Export::Conversion)?;
        let budget = self.limits().lowered(budget);
        let call = async |instance: &mut Instance| {
            let (Bound::Conversion(bound), store) = instance.export(Export::Conversion).await? else { unreachable!() };
            let conversion = bound.pilothouse_plugin_conversion();
            conversion.call_convert(store, &self.config, api_version, objects).await.map_err(calling)
        };
        let asked = objects.len();
        let read = |answer: Result<Vec<String>, String>| match answer {
            Ok(objects) => check_converted(objects, asked).map(Ok),
            Err(message) => Ok(Err(shorten(message, MAX_MESSAGE))),
        };
        let answer = self.instances.call(None, budget, call, read).await;
        answer.map_err(|error| match error {
            CallError::Import { import, said, backtrace, .. } => {
                CallError::Import { import, export: "convert", said, backtrace }
            }
            error => error,
        })
    }
}
