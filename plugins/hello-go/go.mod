module hello-go

go 1.25

require pilothouse.dev/pilothouse-go v0.1.0

replace pilothouse.dev/pilothouse-go => ../../sdks/go

tool pilothouse.dev/pilothouse-go/cmd/pilothouse-build
