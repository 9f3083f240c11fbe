module pilothouse.dev/pilothouse-go

go 1.25
