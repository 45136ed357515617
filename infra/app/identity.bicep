// Who the app is for every other service. No key or password of any kind exists for it.

@description('Name of the user-assigned identity.')
param name string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: name
  location: location
  tags: tags
}

@description('Resource id, to attach the identity to the app.')
output id string = identity.id

@description('Object id, to assign roles to.')
output principalId string = identity.properties.principalId

@description('Client id, to ask for tokens with.')
output clientId string = identity.properties.clientId
