"""Reviews and observes the ConfigMaps of one namespace."""

from pilothouse import Change, Decision, Error, Object, ObserverContext, Plugin, Review, ReviewContext, Rule, Watch

MAPS = Rule([""], ["v1"], ["configmaps"])


def plugin(config: Object) -> Plugin:
    policy = Plugin("A policy in Python.", config_schema={"type": "object"})
    here = f"kubernetes.io/metadata.name={config['namespace']}"
    policy.validate("words", MAPS, namespaces=here, reads=[Watch("v1/ConfigMap", labels="policy")])(words)
    policy.mutate("marks", MAPS, namespaces=here, labels="!policy")(marks)
    policy.observe(Watch("v1/ConfigMap", labels="watched"))(seen)
    return policy


def words(ctx: ReviewContext, review: Review) -> Decision | None:
    policy = ctx.get("v1/ConfigMap", "policy")
    word = (review.object or {}).get("data", {}).get("word")
    if policy is not None and word == policy["data"]["forbidden"]:
        return Decision(denied=f"{word} is forbidden", code=422, warnings=["mind your words"])
    return None


def marks(ctx: ReviewContext, review: Review) -> Decision:
    changed = review.object
    changed["metadata"].setdefault("labels", {})["marked"] = "dry" if review.dry_run else "yes"
    return Decision(object=changed)


def seen(ctx: ObserverContext, change: Change) -> None:
    if change.new is None:
        ctx.log.info(f"gone: {change.key}")
    elif change.new["data"]["word"] == "fails":
        raise Error("no pears left")
    else:
        ctx.log.info(f"seen: {change.key} with {change.new['data']['word']}")
