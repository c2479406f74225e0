module mesh.example/controller

go 1.26
