module scenario

go 1.21
