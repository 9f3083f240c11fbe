module {{name}}

go 1.25

require pilothouse.dev/pilothouse-go v0.1.0

replace pilothouse.dev/pilothouse-go => {{sdk}}

tool pilothouse.dev/pilothouse-go/cmd/pilothouse-build
