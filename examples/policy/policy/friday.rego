# Nothing is deleted in prod on a Friday: neither a stream, a consumer or a bucket, nor messages by a shorter limit.
#
#   jsplan plan -e prod -o shop.plan
#   jsplan show shop.plan --json > plan.json
#   conftest test plan.json
#
# What is prod, which days those are and where in the world it is that day may be said with --data, as in days.yaml.
package main

import rego.v1

default production := ["prod", "production"]

production := data.production

default days := ["Friday"]

days := data.days

default zone := "UTC"

zone := data.zone

now := data.now_ns if {
	data.now_ns
} else := time.now_ns()

today := time.weekday([now, zone])

frozen if {
	some place in [input.environment, input.workspace]
	place in production
	today in days
}

# Destroyed, or made anew without what is in it. ["create", "delete"] carries the messages over.
deny contains msg if {
	frozen
	some resource in input.resource_changes
	resource.change.actions[0] == "delete"
	msg := sprintf("%s would be deleted, and today is %s", [resource.address, today])
}

# What stays, and loses messages: a hazard says so, allowed or not.
deny contains msg if {
	frozen
	some resource in input.resource_changes
	resource.change.actions[0] != "delete"
	some hazard in resource.hazards
	startswith(hazard.code, "DELETES_")
	msg := sprintf("%s: %s, and today is %s", [resource.address, hazard.message, today])
}
