"""Keeps a ConfigMap with the message of each {{kind}}."""

from pilothouse import CONDITIONS, Column, Context, Object, Outcome, Plugin, crd, set_condition

KIND = "{{group}}/{{version}}/{{kind}}"
CONFIG_MAP = "v1/ConfigMap"

plugin = Plugin(
    "Keeps a ConfigMap with the message of each {{kind}}.",
    crds=[
        crd(
            KIND,
            plural="{{plural}}",
            singular="{{singular}}",
            spec={"message": {"type": "string"}},
            required=["message"],
            status={"observedGeneration": {"type": "integer"}, "conditions": CONDITIONS},
            columns=[Column("Message", ".spec.message")],
        )
    ],
)


@plugin.controller(KIND, owns=[CONFIG_MAP])
def reconcile(ctx: Context, obj: Object) -> Outcome:
    """Returns what should exist because of the object. Changes nothing itself."""
    child = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": ctx.key.name},
        "data": {"message": obj["spec"]["message"]},
    }
    # The host runs this again when the result of a read changes.
    found = ctx.get(CONFIG_MAP, ctx.key.name)
    ready = found is not None and found.get("data") == child["data"]
    ctx.log.debug("reconciled", ready=ready)
    conditions = set_condition(
        obj.get("status", {}).get("conditions"),
        ctx.condition("Ready", ready, "Written" if ready else "Progressing"),
    )
    status = {"observedGeneration": obj["metadata"]["generation"], "conditions": conditions}
    return Outcome(children=[child], status=status)
