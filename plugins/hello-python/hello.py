"""Greets everybody that a Hello names: a ConfigMap with the greeting, and a status."""

from pilothouse import CONDITIONS, Column, Context, Error, Object, Outcome, Plugin, crd, set_condition

HELLO = "example.com/v1/Hello"
CONFIG_MAP = "v1/ConfigMap"

plugin = Plugin(
    "Greets everybody that a Hello names.",
    crds=[
        crd(
            HELLO,
            plural="hellos",
            spec={"to": {"type": "string", "minLength": 1}},
            required=["to"],
            status={
                "greeting": {"type": "string"},
                "observedGeneration": {"type": "integer"},
                "conditions": CONDITIONS,
            },
            columns=[Column("Greeting", ".status.greeting")],
        )
    ],
)


@plugin.controller(HELLO, owns=[CONFIG_MAP], events=True)
def reconcile(ctx: Context, hello: Object) -> Outcome:
    name, to = ctx.key.name, hello["spec"]["to"]
    if to == "nobody":
        raise Error("there is nobody to greet", terminal=True)
    text = f"Hello, {to}!"
    greeting = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-greeting"},
        "data": {"text": text},
    }
    written = ctx.get(CONFIG_MAP, f"{name}-greeting") or {}
    ready = written.get("data") == greeting["data"]
    before = hello.get("status", {})
    if before.get("greeting") != text:
        ctx.event("Greeted", text)
    return Outcome(
        children=[greeting],
        status={
            "greeting": text,
            "observedGeneration": hello["metadata"]["generation"],
            "conditions": set_condition(
                before.get("conditions"),
                ctx.condition("Ready", ready, "Written" if ready else "Progressing"),
            ),
        },
    )
